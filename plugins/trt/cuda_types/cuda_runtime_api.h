// TensorRT's headers include CUDA's for two opaque types, which is no reason to need a CUDA
// toolkit.
#pragma once

typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
