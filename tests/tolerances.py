"""Every tolerance of the test-suite, with the reason for its size; tests invent none.

``ATTENTION`` and ``LOGITS`` are relative to the largest magnitude of the expected array, which is
what rounding errors of sums scale with.
"""

from __future__ import annotations

# Sums of a kernel in fp32 against the reference in fp64 on the same stored values. A score of
# s carries an error of a few s * 6e-8, and softmax passes it on to the weights: with the tests'
# scores of up to 25, plain fp32 loops in NumPy were off by up to 4e-6 in 30 draws (a test makes
# thousands), in proportion to the scores. A model in fp16 or bf16 rounds each output: next to a tie
# the two land one unit apart, which is up to 2^-10 and 2^-7 of the value.
ATTENTION = {"float32": 1.2e-5, "float16": 2.0**-10 + 1.2e-5, "bfloat16": 2.0**-7 + 1.2e-5}

# In subspace a kernel may subtract the middle of the grid once per query, sum(a k) - sum(a) middle,
# and not in every product, so that two large sums cancel. Tried in fp32 NumPy, six formats of five
# draws each: off by up to 4.5e-6 that way and 0.9e-6 the other; all tests of the CPU kernels, on
# every instruction set, hold with 6e-6.
ATTENTION_SUBSPACE = {"float32": 1e-5, "float16": 2.0**-10 + 1e-5, "bfloat16": 2.0**-7 + 1e-5}

# What products with codes in integers add (docs/cpu.md): the bounds that each kind of maths keeps
# with scores of up to about 5; a score of s carries an error in proportion to s.
INTEGER_MATHS = {"fp32": 0.0, "int16": 5e-4, "int8": 2e-2}

# Tensor cores multiply fp16 numbers: GPU kernels round mapped queries, weights times magnitudes and
# (to their type) weights of exact tokens to them. Tried in Triton's interpreter, over all tests:
# off by up to 9.4e-4 in fp16 and 4.4e-3 in bf16, of which the rounded output makes up to half.
ATTENTION_GPU = {"float16": 2.0**-10 + 1e-3, "bfloat16": 2.0**-7 + 2e-3}

# Attention masses are sums of softmax weights, whose errors are those of scores.
MASS = 2e-5

# GPU kernels meet codes with queries rounded to fp16, so that a score of s errs by about
# s * 2^-11 / sqrt(components), and its weight by as much. Tried in Triton's interpreter, over all
# tests: off by up to 8.3e-5 of the largest mass. Exact tokens meet no rounded query: 1.6e-7.
MASS_GPU = 2e-4

# Two float64 computations of the same formula.
SAME_FORMULA = 1e-9

# A rewritten graph in exact mode against the original's logits: other fusions, other order of sums.
LOGITS = {"float32": 2e-4, "float16": 1e-2, "bfloat16": 8e-2}

# fp32 against fp64 may fall on the two sides of a grid border, one step apart, in few components.
CODE_STEPS = 1
CODE_SHARE = 5e-3

# Stored magnitudes and fp16 directions: one unit in the last place where the fp32 value was a tie.
FP16_ULP = 2.0**-10
FP16_TINY = 2.0**-24

# Cosines in fp32; test data keeps this distance from every threshold.
SIMILARITY = 1e-5

# Logits of a subspace export against the simulated codec on the exact graph, at three of four
# decode steps. An export keeps recent tokens in fp16 and encodes from there, and does not round
# what it restores to the model's type, as the simulation does: tried, 2e-4 to 8e-4 in fp32 and
# 1.4e-3 in fp16 models, whose last place is 6e-4. A component next to a border of the grid may fall
# to the other level, in few components of few tokens, and more often where keys are rounded to fp16
# on the way: tried, up to 2.6e-2 in the other steps; how many steps that are is a matter of luck.
# Graphs with int8 activations are not compared: they answer a rounding to fp16 alone with 2 to 9 %.
SIMULATED_LOGITS = 2e-3
SIMULATED_LOGITS_WORST = 5e-2
