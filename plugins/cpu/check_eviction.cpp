#include "minicache/attributes.h"

namespace minicache {

std::string CheckEviction(const RawAttributes& raw, Attributes* checked) {
  if (raw.evicts != 0 && raw.evicts != 1)
    return "evicts is " + std::to_string(raw.evicts) + ", not 0 or 1";
  if (raw.observes < -1) {
    return "observes is " + std::to_string(raw.observes) +
           "; it counts queries, 0 is off, -1 means all";
  }
  if (raw.observes != 0 && raw.evicts == 0) {
    return "observes is " + std::to_string(raw.observes) +
           ", but evicts is 0: nothing reads attention_mass";
  }
  if (raw.evicts != 0 && (raw.has_bias != 0 || raw.local_window_size != 0)) {
    return "evicts is 1 with attention_bias or local_window_size, which depend on positions";
  }
  checked->evicts = raw.evicts != 0;
  checked->observes = raw.observes;
  return "";
}

}  // namespace minicache
