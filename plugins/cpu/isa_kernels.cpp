// The kernel table of one instruction set.
#include "cpu/isa_kernels.h"

#include "minicache/kernels.h"

#define MINICACHE_TEXT(x) #x
#define MINICACHE_NAME(x) MINICACHE_TEXT(x)

namespace minicache {
namespace MINICACHE_ISA {

#if defined(__AVX2__)
constexpr bool kHasIntegers = true;
#else
constexpr bool kHasIntegers = false;
#endif

extern const KernelTable kKernels;
const KernelTable kKernels = {
    MINICACHE_NAME(MINICACHE_ISA),
    kHasIntegers,
    AttendScratch,
    Attend,
    Project,
    FinishScratch,
    Finish,
    ObserveScratch,
    Observe,
    EncodeScratch,
    Encode,
    JointScratch,
    ProjectJoint,
    QuantiseJoint,
    Copy,
};

}  // namespace MINICACHE_ISA
}  // namespace minicache
