#include "client/demo/dataset.h"

#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace attnd::demo {
namespace {

absl::StatusOr<Rows> RowsOf(const client::ConstTensor& tensor) {
  auto floats = client::ToFloats(tensor);
  if (!floats.ok()) return floats.status();
  return Rows{*std::move(floats), tensor.shape[0], tensor.shape[1], tensor.shape[2]};
}

absl::StatusOr<Rows> ReadRows(const std::string& path) {
  const auto file = client::ReadNpyFile(path);
  if (!file.ok()) return file.status();
  const auto tensor = client::TokensOf(file->array, path);
  if (!tensor.ok()) return tensor.status();
  return RowsOf(*tensor);
}

absl::StatusOr<Dataset> Load(const std::string& prefix, const std::string& queries) {
  Dataset data;
  auto keys = ReadRows(prefix + "_keys.npy");
  auto values = ReadRows(prefix + "_values.npy");
  auto file = client::ReadNpyFile(prefix + queries);
  for (const absl::Status& status : {keys.status(), values.status(), file.status()}) {
    if (!status.ok()) return status;
  }
  data.keys = *std::move(keys);
  data.values = *std::move(values);
  data.question_file = *std::move(file);
  auto tensor = client::TokensOf(data.question_file.array, prefix + queries);
  if (!tensor.ok()) return tensor.status();
  data.question_tensor = *std::move(tensor);
  auto questions = RowsOf(data.question_tensor);
  if (!questions.ok()) return questions.status();
  data.questions = *std::move(questions);
  if (data.keys.rows != data.values.rows || data.keys.heads != data.values.heads ||
      data.keys.heads != data.questions.heads || data.keys.dim != data.questions.dim) {
    return absl::InvalidArgumentError(absl::StrCat(prefix, "_*.npy: shapes do not fit together"));
  }
  return data;
}

}  // namespace

client::ConstTensor Rows::View(std::int64_t first, std::int64_t count) const {
  const auto begin = static_cast<std::size_t>(first * row_size());
  const auto size = static_cast<std::size_t>(count * row_size());
  return client::F32(std::span(data).subspan(begin, size), {count, heads, dim});
}

absl::StatusOr<std::vector<Dataset>> LoadDatasets(const std::string& directory) {
  auto glove = Load(directory + "/glove", "_queries_f16.npy");
  if (!glove.ok()) return glove.status();
  glove->name = "GloVe";
  glove->token_queries = glove->keys;  // the set is defined with Q = K

  auto ocr = Load(directory + "/ocr", "_queries.npy");
  if (!ocr.ok()) return ocr.status();
  ocr->name = "OCR heads";
  ocr->softmax_scale = 1.0F / std::sqrt(static_cast<float>(ocr->keys.dim));
  ocr->token_queries = ocr->questions;
  if (ocr->token_queries.rows != ocr->keys.rows) {
    return absl::InvalidArgumentError(absl::StrCat(directory, "/ocr_*.npy: row counts differ"));
  }

  std::vector<Dataset> sets;
  sets.push_back(*std::move(glove));
  sets.push_back(*std::move(ocr));
  return sets;
}

}  // namespace attnd::demo
