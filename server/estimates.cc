#include "server/estimates.h"

#include <cstddef>
#include <string>

#include "server/tensors.h"

namespace attnd::server {
namespace {

constexpr double kCoverage = 0.95;  // as engine/engine.h defines the errors

std::uint8_t* MakeBytes(std::string& bytes, std::int64_t count) {
  bytes.resize(static_cast<std::size_t>(count));
  return reinterpret_cast<std::uint8_t*>(bytes.data());
}

template <typename T>
T* Offset(T* pointer, std::int64_t count) {
  return pointer == nullptr ? nullptr : pointer + count;
}

}  // namespace

EstimateBuilder::EstimateBuilder(std::int64_t queries, std::int64_t heads, v1::Estimates* estimates)
    : rows_(queries * heads),
      estimates_(estimates),
      audited_errors_(static_cast<std::size_t>(rows_), -1.0F) {
  view_.audited_errors = audited_errors_.data();
  if (estimates == nullptr) {
    const auto rows = static_cast<std::size_t>(rows_);
    errors_.resize(rows);
    keys_evaluated_.resize(rows);
    bytes_.resize(2 * rows);
    view_.errors = errors_.data();
    view_.keys_evaluated = keys_evaluated_.data();
    view_.paths = bytes_.data();
    view_.calibrated = bytes_.data() + rows;
    return;
  }
  estimates->set_coverage(kCoverage);
  view_.errors = MakeF32(*estimates->mutable_errors(), {queries, heads});
  view_.log_normalizer_bounds =
      MakeF32(*estimates->mutable_log_normalizer_bounds(), {queries, heads, 2});
  view_.exact_masses = MakeF32(*estimates->mutable_exact_masses(), {queries, heads});
  estimates->mutable_keys_evaluated()->Resize(static_cast<int>(rows_), 0);
  view_.keys_evaluated =
      reinterpret_cast<std::int64_t*>(estimates->mutable_keys_evaluated()->mutable_data());
  view_.paths = MakeBytes(*estimates->mutable_paths(), rows_);
  view_.calibrated = MakeBytes(*estimates->mutable_calibrated(), rows_);
  MakeBytes(*estimates->mutable_target_met(), rows_);
}

engine::EstimateView EstimateBuilder::View(std::int64_t first_row) const {
  engine::EstimateView view = view_;
  view.errors = Offset(view.errors, first_row);
  view.log_normalizer_bounds = Offset(view.log_normalizer_bounds, 2 * first_row);
  view.exact_masses = Offset(view.exact_masses, first_row);
  view.keys_evaluated = Offset(view.keys_evaluated, first_row);
  view.paths = Offset(view.paths, first_row);
  view.calibrated = Offset(view.calibrated, first_row);
  view.audited_errors = Offset(view.audited_errors, first_row);
  return view;
}

void EstimateBuilder::Finish(double target_error) {
  if (estimates_ == nullptr) return;
  std::string& met = *estimates_->mutable_target_met();
  for (std::int64_t row = 0; row < rows_; ++row) {
    met[static_cast<std::size_t>(row)] =
        target_error == 0 || double{view_.errors[row]} <= target_error ? '\1' : '\0';
  }
}

}  // namespace attnd::server
