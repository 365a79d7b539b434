// What names the operator wherever it is registered.
#pragma once

namespace minicache {

inline constexpr char kOpName[] = "MiniCacheAttention";
inline constexpr char kDomain[] = "com.minicache";
inline constexpr char kOpVersion[] = "1";
inline constexpr int kAbiVersion = 1;  // counts changes of the libraries' C functions

}  // namespace minicache
