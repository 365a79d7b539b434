// The attention kernels of one instruction set; kernels.cpp gathers them into its table.
#pragma once

#include "minicache/attend.h"
#include "minicache/encode.h"

namespace minicache {
namespace MINICACHE_ISA {

int64_t AttendScratch(int64_t rows, int64_t padded_size);
void Attend(const AttendTask& task);
void Finish(const FinishTask& task);
int64_t EncodeScratch(int64_t layers, int64_t padded_size);
void Encode(const EncodeTask& task);
void Copy(const CopyTask& task);

}  // namespace MINICACHE_ISA
}  // namespace minicache
