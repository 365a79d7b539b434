// The part of an attention task that does not depend on how its tokens are split.
#pragma once

#include "cpu/call.h"

namespace minicache {

// Queries, formats and decoder of the new tokens [begin, begin + count) of one kv head.
AttendTask MakeAttendTask(const Call& call, int64_t row, int64_t head, int64_t begin,
                          int64_t count);

}  // namespace minicache
