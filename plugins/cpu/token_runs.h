// Where the tokens lie that one kv head attends to: docs/operator.md, "where a cached token is
// read".
#pragma once

#include <vector>

#include "cpu/side_buffer.h"

namespace minicache {

struct TokenRuns {
  static constexpr int kMost = 6;  // codes, retained, sinks, ring (wrapped: two), new tokens
  TokenRun list[kMost];
  int32_t count = 0;

  void Add(const TokenRun& run) {
    if (run.begin < run.end) list[count++] = run;
  }
  int64_t BlockCount() const;
};

class TokenRunMaker {
 public:
  explicit TokenRunMaker(const Call& call);

  // Tokens for the new tokens below `fresh_end` of a row; later ones are hidden to all of them.
  TokenRuns Make(int64_t row, int64_t head, int64_t fresh_end) const;

 private:
  // Entries of the side buffer that are read, and those among them whose code bears no mark.
  struct Retained {
    int32_t* slots;
    int32_t* positions;
    int32_t* unmarked;  // positions
    int64_t count;
    int64_t unmarked_count;
  };

  void GatherRetained();
  std::vector<Candidate> FindUnmarked(int64_t row, const int32_t* position) const;
  TokenRun Vectors(TensorId key, TensorId value, Dtype dtype, int64_t slots, int64_t row,
                   int64_t head) const;
  TokenRun Codes(int64_t row, int64_t head) const;
  TokenRun Fresh(int64_t row, int64_t head) const;

  const Call& call_;
  const Attributes& a_;
  std::vector<Retained> retained_;  // [B]
};

}  // namespace minicache
