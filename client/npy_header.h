// The dictionary at the head of a .npy file. See client/npy.h.
#ifndef ATTND_CLIENT_NPY_HEADER_H_
#define ATTND_CLIENT_NPY_HEADER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace attnd::client {

struct NpyHeader {
  std::string descr;
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
};

// Parses the subset of Python that NumPy writes: one dictionary with exactly the three keys, in any
// order, string, boolean and tuple-of-integers values. At most 32 sizes (NumPy's own bound), none
// negative, each below 2^63. Pure function.
absl::StatusOr<NpyHeader> ParseNpyHeader(std::string_view text);

}  // namespace attnd::client

#endif  // ATTND_CLIENT_NPY_HEADER_H_
