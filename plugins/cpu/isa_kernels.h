// The attention kernels of one instruction set; kernels.cpp gathers them into its table.
#pragma once

#include "minicache/attend.h"
#include "minicache/encode.h"
#include "minicache/observe.h"

namespace minicache {
namespace MINICACHE_ISA {

int64_t AttendScratch(int64_t rows, const Widths& widths);
void Attend(const AttendTask& task);
void Project(const AttendTask& task, int64_t segment, float* target);
int64_t FinishScratch(int64_t rows, const Widths& widths);
void Finish(const FinishTask& task);
int64_t ObserveScratch(int64_t rows, const Widths& widths);
void Observe(const ObserveTask& task);
int64_t EncodeScratch(int64_t layers, int64_t padded_size);
void Encode(const EncodeTask& task);
int64_t JointScratch(int64_t tokens, int64_t joint);
void ProjectJoint(const JointTask& task);
void QuantiseJoint(const JointTask& task);
void Copy(const CopyTask& task);

}  // namespace MINICACHE_ISA
}  // namespace minicache
