"""``minicache export`` (also installed as ``minicache-export``)."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from minicache.exporter.delta_options import EXPORTED_BITS
from minicache.exporter.options import MODES, SLERP_BITS, ExportOptions
from minicache.exporter.planner.goal import CODE_HEADS
from minicache.exporter.schemas import MAGNITUDES, RETENTION_SCOPES
from minicache.exporter.targets import TARGETS
from minicache.runtime.eviction.parse import FORMS


def add_export_parser(subparsers: Any) -> None:
    """Adds the parser of ``export``; its defaults are those of ``ExportOptions``."""
    default = ExportOptions()
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "export",
        help="rewrite a decoder-LLM ONNX graph for a merged, in-place KV cache",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("model", type=Path, help="model.onnx, or a folder that holds one")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to make")
    parser.add_argument("--mode", choices=MODES, default=default.mode, help="how tokens are stored")
    targets = "; ".join(f"{target.name}: {target.description}" for target in TARGETS.values())
    parser.add_argument("--target", choices=list(TARGETS), default=default.target, help=targets)
    parser.add_argument(
        "--max-sequence-length",
        type=int,
        metavar="C",
        help="largest number of tokens per sequence; None takes the model's own limit",
    )
    parser.add_argument(
        "--rewind-slack",
        type=int,
        metavar="X",
        default=default.rewind_slack,
        help="tokens that a session can take back exactly",
    )
    parser.add_argument(
        "--evict",
        metavar="POLICY",
        help=f"drop tokens so that rows can be longer than their cache: {FORMS}",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace an earlier export at the output"
    )
    parser.add_argument(
        "--no-kernels",
        action="store_true",
        help="GPU targets: do not compile kernels; minicache kernels FOLDER does so later",
    )
    parser.add_argument(
        "--quiet", action="store_true", help="no progress, no report on the terminal"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    _add_subspace_options(parser, default)
    _add_calibration_options(parser, default)
    _add_coded_options(parser, default)
    _add_paper_options(parser, default)
    _add_verify_options(parser, default)
    parser.set_defaults(run=run)


def _add_subspace_options(parser: argparse.ArgumentParser, default: ExportOptions) -> None:
    subspace = parser.add_argument_group(
        "--mode subspace", "without --ratio, --kv-bytes-per-token, --max-kl or --plan: the largest "
        "ratio that costs at most 1 %% perplexity"
    )  # fmt: skip
    subspace.add_argument(
        "--ratio", type=float, metavar="X", help="coded part at least X times smaller than fp16"
    )
    subspace.add_argument(
        "--kv-bytes-per-token", type=int, metavar="N", help="at most N coded bytes, all layers"
    )
    subspace.add_argument(
        "--max-kl", type=float, metavar="NATS", help="at most so much KL to the original per token"
    )
    subspace.add_argument(
        "--max-group-size",
        type=int,
        metavar="G",
        default=default.max_group_size,
        help="layers of the largest group; each of them reads the whole group's code",
    )
    subspace.add_argument(
        "--code-heads",
        choices=CODE_HEADS,
        default=default.code_heads,
        help="kv heads of a layer coded apart, jointly (smaller, but more arithmetic), or either",
    )
    subspace.add_argument(
        "--plan", type=Path, metavar="FILE", help="take this plan (plan.json of an export)"
    )
    subspace.add_argument(
        "--plan-minutes",
        type=float,
        metavar="MIN",
        default=default.plan_minutes,
        help="time after which no further plan is measured",
    )


def _add_calibration_options(parser: argparse.ArgumentParser, default: ExportOptions) -> None:
    calibrated = parser.add_argument_group(
        "--mode subspace, and --mode paper with --align or --delta-rank"
    )
    calibrated.add_argument(
        "--calibration", type=Path, metavar="FILE", help="UTF-8 text to fit to; None: built in"
    )
    calibrated.add_argument(
        "--calibration-tokens",
        type=int,
        metavar="N",
        default=default.calibration_tokens,
        help="tokens of it to read at most",
    )
    calibrated.add_argument(
        "--cache",
        type=Path,
        metavar="FOLDER",
        help="keeps calibrations and measurements; None: MINICACHE_CACHE or the user's cache",
    )


def _add_coded_options(parser: argparse.ArgumentParser, default: ExportOptions) -> None:
    coded = parser.add_argument_group("--mode subspace and paper")
    coded.add_argument(
        "--window", type=int, metavar="W", default=default.window, help="recent tokens kept exact"
    )
    coded.add_argument(
        "--sinks", type=int, metavar="N", default=default.sinks, help="first tokens kept exact"
    )


def _add_paper_options(parser: argparse.ArgumentParser, default: ExportOptions) -> None:
    paper = parser.add_argument_group("--mode paper (arXiv:2405.14366)")
    paper.add_argument(
        "--start-layer", type=int, metavar="S", help="first merged layer; None means half depth"
    )
    paper.add_argument(
        "--group-size", type=int, metavar="G", default=default.group_size, help="layers per group"
    )
    paper.add_argument(
        "--slerp-t",
        type=float,
        metavar="T",
        default=default.slerp_t,
        help="weight of the upper layer; None means 0.6, and 0.5 with deltas",
    )
    paper.add_argument(
        "--magnitude", choices=MAGNITUDES, default=default.magnitude, help="what restores a layer"
    )
    paper.add_argument(
        "--retention",
        metavar="POLICY",
        default=default.retention,
        help="none, threshold:COSINE, minmax:GAMMA or budget:FRACTION",
    )
    paper.add_argument(
        "--retention-capacity",
        type=float,
        metavar="FRACTION",
        help="side buffer for retained tokens, as a fraction of C; None means 0.05",
    )
    paper.add_argument(
        "--retention-scope",
        choices=RETENTION_SCOPES,
        default=default.retention_scope,
        help="how heads vote on a token",
    )
    paper.add_argument(
        "--code-bits",
        type=int,
        choices=SLERP_BITS,
        default=default.code_bits,
        help="bits per element of the shared direction",
    )
    paper.add_argument(
        "--align",
        action="store_true",
        help="turn the layers of a group to each other first, by a calibration",
    )
    paper.add_argument(
        "--delta-bits",
        type=int,
        choices=(0, *EXPORTED_BITS),
        default=default.delta_bits,
        help="bits per element of what the direction of a pair lacks; 0: not kept",
    )
    paper.add_argument(
        "--delta-rank",
        type=int,
        metavar="R",
        default=default.delta_rank,
        help="instead of bits: fp16 coefficients of it in a calibrated basis; 0: not kept",
    )


def _add_verify_options(parser: argparse.ArgumentParser, default: ExportOptions) -> None:
    verify = parser.add_argument_group("verification of lossy modes, on held-out text")
    verify.add_argument(
        "--text", type=Path, dest="verify_text", metavar="FILE", help="UTF-8 text; None: built in"
    )
    verify.add_argument(
        "--verify-documents",
        type=int,
        metavar="N",
        default=default.verify_documents,
        help="documents to measure on",
    )
    verify.add_argument(
        "--verify-context",
        type=int,
        metavar="C",
        default=default.verify_context,
        help="tokens per document",
    )
    verify.add_argument("--no-verify", action="store_true", help="do not measure the loss")


def run(arguments: argparse.Namespace) -> int:
    """Runs the export and prints its report."""
    from minicache.exporter.pipeline import export_model
    from minicache.exporter.reporting import report

    values = vars(arguments)
    names = ExportOptions.__dataclass_fields__
    options = ExportOptions(
        **{
            **{name: values[name] for name in names if name in values},
            "verify_documents": 0 if arguments.no_verify else arguments.verify_documents,
            "quiet": arguments.quiet or arguments.json,
        }
    )
    result = export_model(arguments.model, arguments.output, options)
    if arguments.json:
        print(json.dumps(result.report, indent=1, ensure_ascii=False))
    elif not arguments.quiet:
        report.print_report(result.report, arguments.output, Console(markup=False))
    return 0
