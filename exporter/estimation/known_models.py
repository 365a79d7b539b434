"""Geometries of well-known models: numbers of their published ``config.json``."""

from __future__ import annotations

from minicache.exporter.estimation.geometry import Geometry

# layers, query heads, kv heads, head size, longest context. Where every layer slides (as in
# Mistral 7B v0.1 and Phi-3 mini 4k) nothing can be coded: in these versions none does.
KNOWN_MODELS: dict[str, Geometry] = {
    geometry.name: geometry
    for geometry in (
        Geometry.uniform("smollm2-135m", 30, 9, 3, 64, 8192),
        Geometry.uniform("phi-3-mini-128k", 32, 32, 32, 96, 131072),
        Geometry.uniform("llama-2-7b", 32, 32, 32, 128, 4096),
        Geometry.uniform("mistral-7b-v0.3", 32, 32, 8, 128, 32768),
        Geometry.uniform("llama-3.1-8b", 32, 32, 8, 128, 131072),
        Geometry.uniform("mixtral-8x7b", 32, 32, 8, 128, 32768),
        Geometry.uniform("llama-3.1-70b", 80, 64, 8, 128, 131072),
    )
}
