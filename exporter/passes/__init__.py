"""The rewriting passes: one pass, one class, one file; ``exporter/pipeline.py`` has their order.

Each follows onnx_ir's pass contract: ``requires`` refuses an unfit model with a sentence, ``call``
does the work and says whether it changed anything, ``ensures`` checks our own result.
"""
