"""Contents of reports, as ``build_report`` gives them."""

from __future__ import annotations

from typing import Any


def point(ratio: float, loss: float, *, chosen: bool = False, **changes: Any) -> dict[str, Any]:
    return {
        "structure": "G=2, heads apart",
        "bits_per_element": 16 / ratio,
        "ratio": ratio,
        "bytes_per_token": int(23040 / ratio),
        "bytes_read": int(46080 / ratio),
        "predicted_kl": loss,
        "kl": loss,
        "perplexity_ratio": 1 + loss,
        "perplexity_ratio_low": 1 + loss - 0.003,
        "perplexity_ratio_high": 1 + loss + 0.003,
        "top1_agreement": 0.98,
        "chosen": chosen,
        **changes,
    }


def rival(name: str, bits: float, ratio: float, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "bits_per_element": bits,
        "kv_bytes": 1_000_000 * bits,
        "compression_ratio": 16 / bits,
        "perplexity_ratio": ratio,
        "perplexity_ratio_low": ratio * 0.99,
        "perplexity_ratio_high": ratio * 1.01,
        "kl_mean": ratio - 1,
        "top1_agreement": 0.9,
        **changes,
    }


def quality(**changes: Any) -> dict[str, Any]:
    return {
        "perplexity_original": 14.21,
        "perplexity_exported": 14.33,
        "perplexity_ratio": 1.0084,
        "perplexity_ratio_low": 1.0041,
        "perplexity_ratio_high": 1.0128,
        "kl_mean": 0.0051,
        "top1_agreement": 0.968,
        "bits_per_element": 2.5,
        "kv_bytes_resident": 5_100_000,
        "kv_bytes_fp16": 23_600_000,
        "kv_bytes_exact_model": 47_200_000,
        "compression_ratio": 4.63,
        "tokens": 2044,
        "context": 1024,
        "prefill": 512,
        "chunk": 32,
        "documents": 4,
        "finish": "complete",
        **changes,
    }


def group(first: int) -> dict[str, Any]:
    return {
        "layers": [first, first + 1],
        "code_heads": 3,
        "key_bits": [8, 8, 4, 24, 2, 16],
        "value_bits": [4, 32, 2, 20],
        "key_bits_per_element": 2.75,
        "value_bits_per_element": 2.125,
        "bytes_per_token": 150,
    }


def exact_content(**changes: Any) -> dict[str, Any]:
    return {
        "model": "model.onnx",
        "output": "small",
        "mode": "exact",
        "target": "ort-cpu",
        "options": {},
        "merged_groups": [],
        "exact_layers": 4,
        "parity": {
            "dtype": "fp32",
            "tolerance": 2e-4,
            "max_relative_difference": 1.3e-6,
            "top1_agreement": 1.0,
            "cases": [
                {
                    "name": "batch 1",
                    "tokens": 30,
                    "max_difference": 2e-5,
                    "max_logit": 21.0,
                    "top1_agreement": 1.0,
                    "worst_gap": 0.0,
                }
            ],
            "notes": [],
        },
        "quality": None,
        "rivals": [],
        "frontier": [],
        "groups": [],
        "similarity": [],
        "calibration_tokens": 0,
        "cache_bytes": [
            {
                "context": 8192,
                "resident": 30_000_000,
                "fp16_cache": 188_743_680,
                "model_type_cache": 377_487_360,
                "ratio_to_fp16": 6.2915,
                "ratio_to_model_type": 12.5829,
            }
        ],
        "verdict": "Every token is stored exactly.",
        "notes": ["RoPE was made explicit."],
        "command": "minicache-export model.onnx -o small --mode exact",
        "seconds": 12.3,
        **changes,
    }


def subspace_content(**changes: Any) -> dict[str, Any]:
    return exact_content(
        mode="subspace",
        merged_groups=[[0, 1], [2, 3]],
        exact_layers=0,
        quality=quality(),
        rivals=[rival("static-int8", 8.0, 1.001), rival("kivi-int2", 3.0, 1.32)],
        frontier=[point(4.0, 0.001), point(6.4, 0.004, chosen=True), point(8.0, 0.02)],
        groups=[group(0), group(2)],
        similarity=[
            {"layers": [0, 1], "key_cosine": 0.6, "value_cosine": 0.02},
            {"layers": [1, 2], "key_cosine": None, "value_cosine": -0.1},
            {"layers": [2, 3], "key_cosine": 0.7, "value_cosine": 0.05},
        ],
        **changes,
    )
