// The real tensors of the demonstration, as read from tests/data.
//
// Immutable after loading.
#ifndef ATTND_CLIENT_DEMO_DATASET_H_
#define ATTND_CLIENT_DEMO_DATASET_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/npy.h"
#include "client/tensor.h"

namespace attnd::demo {

// Floats with their shape [rows, heads, dim].
struct Rows {
  std::vector<float> data;
  std::int64_t rows = 0;
  std::int64_t heads = 0;
  std::int64_t dim = 0;

  std::int64_t row_size() const { return heads * dim; }
  const float* row(std::int64_t index) const { return data.data() + index * row_size(); }
  client::ConstTensor View(std::int64_t first, std::int64_t count) const;
};

struct Dataset {
  std::string name;
  // Factor on the queries under which softmax attention of this data means something.
  float softmax_scale = 1;
  Rows keys;
  Rows values;
  // One query per token, for Step.
  Rows token_queries;
  // Queries to ask in between, for Attend: the numbers, and the array as it is stored (f32 or f16),
  // which is what is sent.
  Rows questions;
  client::NpyFile question_file;
  client::ConstTensor question_tensor;
};

// GloVe word vectors with softmax(q k^T) v and a text recogniser's attention heads; see README.md
// in `directory`.
absl::StatusOr<std::vector<Dataset>> LoadDatasets(const std::string& directory);

}  // namespace attnd::demo

#endif  // ATTND_CLIENT_DEMO_DATASET_H_
