// Answers: their size is known before they are computed, and their outputs have the type that was
// asked for.
#include "server/answer.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "gtest/gtest.h"
#include "server/error.h"

namespace attnd::server {
namespace {

// Of shapes and tags; AnswerBytes() may be this much above what is sent.
constexpr std::int64_t kSlack = 512;

LayerGroup Group(EngineKind kind, v1::FeatureMapKind map = v1::ELU_PLUS_ONE) {
  v1::SessionConfig config;
  v1::LayerGroup& group = *config.add_layer_groups();
  group.set_kv_heads(2);
  group.set_query_heads(6);
  group.set_key_dim(8);
  group.set_value_dim(5);
  if (kind == EngineKind::kExact) {
    group.mutable_exact();
  } else if (kind == EngineKind::kKde) {
    group.mutable_kde()->mutable_accuracy()->set_max_keys(1000);
  } else {
    group.mutable_linear()->mutable_feature_map()->set_kind(map);
  }
  auto plan = PlanSession(config, Options());
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan->groups[0];
}

// Every combination of what an engine offers.
std::vector<AnswerSpec> AllSpecs() {
  std::vector<AnswerSpec> specs;
  for (const EngineKind kind : {EngineKind::kExact, EngineKind::kLinear, EngineKind::kKde}) {
    const LayerGroup group = Group(kind);
    for (const v1::DataType type : {v1::F32, v1::F16, v1::BF16}) {
      for (int bits = 0; bits < 16; ++bits) {
        v1::AnswerOptions options;
        options.set_output_dtype(type);
        options.set_flags((bits & 1) != 0);
        options.set_partials((bits & 2) != 0);
        options.set_denominators(kind == EngineKind::kLinear && (bits & 4) != 0);
        options.set_top_k(kind != EngineKind::kLinear ? bits / 4 * 21 : 0);
        options.set_estimates(kind == EngineKind::kKde && (bits & 1) == 0);
        const auto spec = PlanAnswer(options, group);
        EXPECT_TRUE(spec.ok()) << spec.status();
        specs.push_back(*spec);
      }
    }
  }
  return specs;
}

// The encoded size of an answer whose numbers take as much room as numbers can.
std::int64_t EncodedBytes(const AnswerSpec& spec, std::int64_t queries) {
  v1::Answer answer;
  AnswerBuilder builder(spec, queries, answer);
  const engine::AnswerView view = builder.View(0);
  std::fill_n(view.outputs, queries * spec.shape.output_row(), 1.0F);
  if (spec.top_k > 0) {
    std::fill_n(view.top_positions, queries * spec.shape.query_heads * spec.top_k,
                std::int64_t{-1});
  }
  if (spec.estimates) {
    std::fill_n(view.estimates.keys_evaluated, queries * spec.shape.query_heads, std::int64_t{-1});
  }
  EXPECT_TRUE(builder.Finish().ok());
  return static_cast<std::int64_t>(answer.ByteSizeLong());
}

TEST(AnswerBytes, IsTheEncodedSize) {
  for (const AnswerSpec& spec : AllSpecs()) {
    for (const std::int64_t queries : {1, 7, 300}) {
      const std::int64_t encoded = EncodedBytes(spec, queries);
      EXPECT_LE(encoded, AnswerBytes(spec, queries)) << "never less than what is sent";
      EXPECT_GE(encoded, AnswerBytes(spec, queries) - kSlack);
    }
  }
}

TEST(AnswerBytes, WhatIsSaidToFitFitsAndOneMoreDoesNot) {
  for (const AnswerSpec& spec : AllSpecs()) {
    for (const std::int64_t limit : {1'000, 10'000, 1'234'567}) {
      std::int64_t most = 0;
      while (CheckAnswerFits(spec, most + 1, limit).ok()) ++most;
      EXPECT_LE(most == 0 ? 0 : AnswerBytes(spec, most), limit);
      EXPECT_GT(AnswerBytes(spec, most + 1), limit);
      const absl::Status refused = CheckAnswerFits(spec, 1'000'000, limit);
      EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
      EXPECT_EQ(ReasonOf(refused), v1::RESPONSE_TOO_LARGE);
      google::rpc::ErrorInfo info;
      ASSERT_TRUE(ToRpcStatus(refused).details(0).UnpackTo(&info));
      EXPECT_EQ(info.metadata().at("max_queries"), std::to_string(most));
    }
  }
}

TEST(AnswerBytes, ALimitBelowAnyAnswerAllowsNone) {
  const absl::Status refused = CheckAnswerFits(AllSpecs()[0], 1, 10);
  EXPECT_EQ(refused.message(),
            "the answer to 1 queries would take about 1 * 120 bytes; max_response_bytes = 10 "
            "allows 0 queries");
}

TEST(WorkBytes, CountsTheAnswerThePlanAndWhatIsConverted) {
  AnswerSpec spec = AllSpecs()[0];
  RowsView queries;
  queries.rows = 10;
  constexpr std::int64_t kQueries = 480;  // elements
  queries.elements.count = kQueries;
  constexpr std::int64_t kOutputs = 1200;  // bytes of 10 rows of 6 heads of 5
  EXPECT_EQ(WorkBytes(spec, queries, 777), AnswerBytes(spec, 10) + 777);
  queries.elements.type = engine::DataType::kBf16;
  EXPECT_EQ(WorkBytes(spec, queries, 777), AnswerBytes(spec, 10) + 777 + 4 * kQueries);
  spec.output_type = engine::DataType::kF16;
  EXPECT_EQ(WorkBytes(spec, queries, 777), AnswerBytes(spec, 10) + 777 + kOutputs + 4 * kQueries);
  spec.approximate = true;
  EXPECT_EQ(WorkBytes(spec, queries, 777), AnswerBytes(spec, 10) + 777 + kOutputs + 4 * kQueries +
                                               60 * (kEstimateWorkBytes + kAuditWorkBytes));
  spec.estimates = true;
  EXPECT_EQ(WorkBytes(spec, queries, 777),
            AnswerBytes(spec, 10) + 777 + kOutputs + 4 * kQueries + 60 * kAuditWorkBytes);
}

TEST(PlanAnswer, RefusesWhatIsOutOfRangeOrNotOffered) {
  const auto refusal = [](EngineKind kind, void (*set)(v1::AnswerOptions&)) {
    v1::AnswerOptions options;
    set(options);
    const absl::Status status = PlanAnswer(options, Group(kind)).status();
    return v1::ErrorReason_Name(ReasonOf(status)) + ": " + std::string(status.message());
  };
  EXPECT_EQ(refusal(EngineKind::kExact, [](v1::AnswerOptions& o) { o.set_top_k(-1); }),
            "INVALID_FIELD: options.top_k is -1; it must be 0 to 64");
  EXPECT_EQ(refusal(EngineKind::kExact, [](v1::AnswerOptions& o) { o.set_top_k(65); }),
            "INVALID_FIELD: options.top_k is 65; it must be 0 to 64");
  EXPECT_EQ(refusal(EngineKind::kLinear, [](v1::AnswerOptions& o) { o.set_top_k(1); }),
            "UNSUPPORTED: options.top_k is 1; a linear layer has no top_k");
  EXPECT_EQ(
      refusal(EngineKind::kExact, [](v1::AnswerOptions& o) { o.set_denominators(true); }),
      "UNSUPPORTED: options.denominators is set; the layer's engine is exact, which has none; its "
      "partials carry log_normalizers");
  EXPECT_EQ(refusal(EngineKind::kExact,
                    [](v1::AnswerOptions& o) { o.set_output_dtype(static_cast<v1::DataType>(9)); }),
            "BAD_TENSOR: options.output_dtype is 9; it must be F32, F16 or BF16");
  EXPECT_EQ(refusal(EngineKind::kExact, [](v1::AnswerOptions& o) { o.set_estimates(true); }),
            "UNSUPPORTED: options.estimates is set; the layer's engine is exact, which does not "
            "estimate: only kde does");
  EXPECT_EQ(refusal(EngineKind::kKde, [](v1::AnswerOptions& o) { o.set_denominators(true); }),
            "UNSUPPORTED: options.denominators is set; the layer's engine is kde, which has none; "
            "its partials carry log_normalizers");
}

TEST(PlanAnswer, AnAccuracyIsForLayersThatEstimate) {
  const v1::AnswerOptions options;
  v1::Accuracy accuracy;
  for (const EngineKind kind : {EngineKind::kExact, EngineKind::kLinear}) {
    const absl::Status status = PlanAnswer(options, Group(kind), &accuracy).status();
    EXPECT_EQ(ReasonOf(status), v1::UNSUPPORTED) << status;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  }
  const LayerGroup group = Group(EngineKind::kKde);
  EXPECT_EQ(PlanAnswer(options, group)->accuracy.max_keys, 1000);
  EXPECT_EQ(PlanAnswer(options, group)->accuracy.target_error, 0);
  accuracy.set_target_error(0.25);
  EXPECT_EQ(PlanAnswer(options, group, &accuracy)->accuracy.max_keys, 1000);
  EXPECT_EQ(PlanAnswer(options, group, &accuracy)->accuracy.target_error, 0.25);
  accuracy.set_max_keys(-1);
  const absl::Status status = PlanAnswer(options, group, &accuracy).status();
  EXPECT_EQ(ReasonOf(status), v1::INVALID_FIELD);
  EXPECT_EQ(status.message(), "accuracy.max_keys is -1; it must be at least 0");
}

TEST(PlanAnswer, EfficientAttentionHasNoDenominatorsAndNothingToMerge) {
  const LayerGroup group = Group(EngineKind::kLinear, v1::EFFICIENT);
  v1::AnswerOptions options;
  options.set_flags(true);
  EXPECT_TRUE(PlanAnswer(options, group).ok());
  options.set_partials(true);
  absl::Status status = PlanAnswer(options, group).status();
  EXPECT_EQ(ReasonOf(status), v1::NOT_MERGEABLE);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "options.partials is set; the layer's answers over parts of a context do not add up to "
            "the answer over the whole");
  options.set_denominators(true);
  status = PlanAnswer(options, group).status();
  EXPECT_EQ(ReasonOf(status), v1::UNSUPPORTED);
  EXPECT_EQ(status.message(),
            "options.denominators is set; the layer's queries have none of their own");
}

// Every tensor of an answer with its shape.
std::map<std::string, std::vector<std::int64_t>> Shapes(const v1::Answer& answer) {
  std::map<std::string, std::vector<std::int64_t>> shapes;
  const auto add = [&](const char* name, bool has, const v1::Tensor& tensor) {
    if (!has) return;
    shapes[name].assign(tensor.shape().begin(), tensor.shape().end());
    std::size_t bytes = tensor.dtype() == v1::F32 ? 4 : 2;
    for (const std::int64_t size : tensor.shape()) bytes *= static_cast<std::size_t>(size);
    EXPECT_EQ(tensor.data().size(), bytes) << name;
  };
  const v1::Partial& partial = answer.partial();
  add("outputs", answer.has_outputs(), answer.outputs());
  add("denominators", answer.has_denominators(), answer.denominators());
  add("log_normalizers", partial.has_log_normalizers(), partial.log_normalizers());
  add("numerators", partial.has_numerators(), partial.numerators());
  add("partial denominators", partial.has_denominators(), partial.denominators());
  add("weights", answer.top_k().has_weights(), answer.top_k().weights());
  return shapes;
}

TEST(AnswerBuilder, LaysOutWhatWasAskedFor) {
  AnswerSpec spec;
  spec.shape = Group(EngineKind::kExact).engine->shape();
  spec.flags = true;
  spec.partials = true;
  spec.top_k = 3;
  v1::Answer exact;
  EXPECT_TRUE(AnswerBuilder(spec, 4, exact).Finish().ok());
  EXPECT_EQ(Shapes(exact),
            (std::map<std::string, std::vector<std::int64_t>>{
                {"outputs", {4, 6, 5}}, {"log_normalizers", {4, 6}}, {"weights", {4, 6, 3}}}));
  EXPECT_EQ(exact.flags().size(), 24U);
  EXPECT_EQ(exact.top_k().k(), 3);
  EXPECT_EQ(exact.top_k().positions_size(), 72);

  spec.engine = EngineKind::kLinear;
  spec.top_k = 0;
  spec.denominators = true;
  v1::Answer linear;
  AnswerBuilder builder(spec, 4, linear);
  std::fill_n(builder.View(0).denominators, 24, 2.5F);
  EXPECT_TRUE(builder.Finish().ok());
  EXPECT_EQ(Shapes(linear),
            (std::map<std::string, std::vector<std::int64_t>>{{"outputs", {4, 6, 5}},
                                                              {"denominators", {4, 6}},
                                                              {"numerators", {4, 6, 5}},
                                                              {"partial denominators", {4, 6}}}));
  EXPECT_EQ(linear.partial().denominators().data(), linear.denominators().data());
  EXPECT_EQ(linear.partial().exponents_size(), 1);
}

TEST(AnswerBuilder, AViewBeginsAtItsQuery) {
  for (const AnswerSpec& spec : AllSpecs()) {
    v1::Answer answer;
    AnswerBuilder builder(spec, 4, answer);
    const engine::AnswerView all = builder.View(0);
    const engine::AnswerView third = builder.View(2);
    const std::int64_t heads = spec.shape.query_heads;
    EXPECT_EQ(third.outputs - all.outputs, 2 * spec.shape.output_row());
    EXPECT_EQ(all.flags != nullptr, spec.flags);
    if (spec.flags) {
      EXPECT_EQ(third.flags - all.flags, 2 * heads);
    }
    const bool softmax = spec.engine != EngineKind::kLinear;
    EXPECT_EQ(all.log_normalizers != nullptr, spec.partials && softmax);
    if (spec.partials && softmax) {
      EXPECT_EQ(third.log_normalizers - all.log_normalizers, 2 * heads);
    }
    EXPECT_EQ(all.numerators != nullptr, spec.partials && !softmax);
    if (all.numerators != nullptr) {
      EXPECT_EQ(third.numerators - all.numerators, 2 * spec.shape.output_row());
      EXPECT_EQ(third.denominators - all.denominators, 2 * heads);
    }
    EXPECT_EQ(third.top_k, spec.top_k);
    if (spec.top_k > 0) {
      EXPECT_EQ(third.top_positions - all.top_positions, 2 * heads * spec.top_k);
      EXPECT_EQ(third.top_weights - all.top_weights, 2 * heads * spec.top_k);
    }
    EXPECT_EQ(answer.has_estimates(), spec.estimates);
    // For the metrics, whether they are sent or not.
    EXPECT_EQ(all.estimates.errors != nullptr, spec.engine == EngineKind::kKde);
    if (spec.engine == EngineKind::kKde) {
      EXPECT_EQ(third.estimates.errors - all.estimates.errors, 2 * heads);
    }
    EXPECT_EQ(all.estimates.exact_masses != nullptr, spec.estimates);
  }
}

// The outputs of one query, as they are sent.
absl::StatusOr<v1::Tensor> Converted(engine::DataType type, const std::vector<float>& outputs) {
  AnswerSpec spec;
  spec.shape = {1, 1, 1, static_cast<std::int64_t>(outputs.size()), 1.0F};
  spec.output_type = type;
  v1::Answer answer;
  AnswerBuilder builder(spec, 1, answer);
  std::copy(outputs.begin(), outputs.end(), builder.View(0).outputs);
  absl::Status finished = builder.Finish();
  if (!finished.ok()) return finished;
  return answer.outputs();
}

template <typename T>
std::vector<T> Elements(const v1::Tensor& tensor) {
  std::vector<T> elements(tensor.data().size() / sizeof(T));
  std::memcpy(elements.data(), tensor.data().data(), tensor.data().size());
  return elements;
}

TEST(AnswerBuilder, OutputsHaveTheTypeThatWasAskedForRoundedToNearestEven) {
  const std::vector<float> outputs = {1.0F,         -2.5F,       0.0F,       1 + 0x1p-11F,
                                      1 + 0x3p-11F, 1 + 0x1p-8F, 1 + 0x3p-8F};
  auto tensor = Converted(engine::DataType::kF32, outputs);
  ASSERT_TRUE(tensor.ok());
  EXPECT_EQ(tensor->dtype(), v1::F32);
  EXPECT_EQ(Elements<float>(*tensor), outputs);

  tensor = Converted(engine::DataType::kF16, outputs);
  ASSERT_TRUE(tensor.ok());
  EXPECT_EQ(tensor->dtype(), v1::F16);
  EXPECT_EQ(tensor->shape(2), 7);
  EXPECT_EQ(Elements<std::uint16_t>(*tensor),
            (std::vector<std::uint16_t>{0x3C00, 0xC100, 0, 0x3C00, 0x3C02, 0x3C04, 0x3C0C}));

  tensor = Converted(engine::DataType::kBf16, outputs);
  ASSERT_TRUE(tensor.ok());
  EXPECT_EQ(tensor->dtype(), v1::BF16);
  EXPECT_EQ(Elements<std::uint16_t>(*tensor),
            (std::vector<std::uint16_t>{0x3F80, 0xC020, 0, 0x3F80, 0x3F80, 0x3F80, 0x3F82}));
}

TEST(AnswerBuilder, AFiniteOutputThatDoesNotFitIsRefused) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  EXPECT_TRUE(Converted(engine::DataType::kF16, {65504.0F, -65519.0F}).ok());
  const absl::Status half = Converted(engine::DataType::kF16, {1.0F, -65520.0F}).status();
  EXPECT_EQ(ReasonOf(half), v1::OUTPUT_OVERFLOW);
  EXPECT_EQ(half.message(),
            "an output leaves the range of options.output_dtype = F16; ask for F32");
  EXPECT_TRUE(Converted(engine::DataType::kBf16, {65520.0F, 0x1.FEp127F}).ok());
  const absl::Status brain = Converted(engine::DataType::kBf16, {kLargest}).status();
  EXPECT_EQ(ReasonOf(brain), v1::OUTPUT_OVERFLOW);
  EXPECT_EQ(brain.message(),
            "an output leaves the range of options.output_dtype = BF16; ask for F32");
  EXPECT_TRUE(Converted(engine::DataType::kF32, {kLargest}).ok());
}

}  // namespace
}  // namespace attnd::server
