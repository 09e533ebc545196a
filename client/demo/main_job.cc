#include "client/demo/main_job.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"

namespace attnd::demo {
namespace {

using client::AttendResult;
using client::LayerTokens;
using client::Stream;

// Below, at, across and far across the engines' blocks of 64 tokens.
constexpr std::array<std::int64_t, 11> kPieces = {1, 5, 64, 17, 129, 250, 3, 63, 300, 31, 97};
constexpr std::int64_t kSingleQuestions = 8;
constexpr std::int64_t kQuestionBatch = 16;
constexpr std::int64_t kStreamPiece = 16;

}  // namespace

MainJob::MainJob(std::shared_ptr<client::Client> client, const Dataset& data, Kind kind)
    : client_(std::move(client)),
      data_(data),
      kind_(kind),
      scale_(kind == Kind::kSoftmax ? data.softmax_scale : 1.0F) {}

absl::StatusOr<std::shared_ptr<client::SessionHandle>> MainJob::Create() {
  v1::SessionConfig config;
  v1::LayerGroup* group = config.add_layer_groups();
  group->set_kv_heads(static_cast<std::int32_t>(data_.keys.heads));
  group->set_query_heads(static_cast<std::int32_t>(data_.keys.heads));
  group->set_key_dim(static_cast<std::int32_t>(data_.keys.dim));
  group->set_value_dim(static_cast<std::int32_t>(data_.values.dim));
  group->set_scale(scale_);
  if (kind_ == Kind::kSoftmax) {
    group->mutable_exact();
  } else {
    group->mutable_linear()->mutable_feature_map()->set_kind(v1::ELU_PLUS_ONE);
  }
  return client_->CreateSession(config);
}

LayerTokens MainJob::Tokens(std::int64_t first, std::int64_t count) const {
  return {0, data_.keys.View(first, count), data_.values.View(first, count), ""};
}

absl::Status MainJob::Run() {
  auto session = Create();
  if (!session.ok()) return session.status();
  session_ = *std::move(session);
  auto stream = session_->OpenStream();
  if (!stream.ok()) return stream.status();
  stream_ = *std::move(stream);

  std::int64_t piece = 0;
  for (std::int64_t first = 0; first < data_.keys.rows; ++piece) {
    const std::int64_t count = std::min(kPieces[static_cast<std::size_t>(piece) % kPieces.size()],
                                        data_.keys.rows - first);
    absl::Status status = piece % 3 == 0   ? AppendPiece(first, count)
                          : piece % 3 == 1 ? StepPiece(first, count)
                                           : StreamPiece(first, count);
    if (status.ok()) status = AskQuestions();
    if (!status.ok()) return status;
    first += count;
  }
  return stream_->Finish();
}

absl::Status MainJob::AppendPiece(std::int64_t first, std::int64_t count) {
  return session_->Append(Tokens(first, count)).status();
}

absl::Status MainJob::StepPiece(std::int64_t first, std::int64_t count) {
  const auto result = session_->Step(Tokens(first, count), data_.token_queries.View(first, count));
  if (!result.ok()) return result.status();
  return Keep(result->answer, data_.token_queries, first, count, result->position,
              /*causal=*/true);
}

absl::Status MainJob::StreamPiece(std::int64_t first, std::int64_t count) {
  struct Asked {
    std::int64_t question;
    Stream::Future<AttendResult> answer;
  };
  std::vector<Stream::Future<client::AppendResult>> appends;
  std::vector<Asked> asked;
  for (std::int64_t done = 0; done < count; done += kStreamPiece) {
    const std::int64_t part = std::min(kStreamPiece, count - done);
    appends.push_back(stream_->Append(Tokens(first + done, part)));
    const std::int64_t question = next_question_++ % data_.questions.rows;
    asked.push_back(
        {question, stream_->Attend(0, client::Rows(data_.question_tensor, question, 1))});
  }
  for (auto& append : appends) {
    if (const absl::Status status = append.get().status(); !status.ok()) return status;
  }
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const auto result = asked[i].answer.get();
    if (!result.ok()) return result.status();
    // In a stream an Attend sees all earlier messages and no later one.
    const std::int64_t expected =
        std::min(first + count, first + (static_cast<std::int64_t>(i) + 1) * kStreamPiece);
    if (result->position != expected) {
      return absl::InternalError(
          absl::StrCat("stream: answered at position ", result->position, ", expected ", expected));
    }
    const absl::Status status = Keep(result->answer, data_.questions, asked[i].question, 1,
                                     result->position, /*causal=*/false);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status MainJob::AskQuestions() {
  for (std::int64_t i = 0; i <= kSingleQuestions; ++i) {
    const std::int64_t count = i < kSingleQuestions ? 1 : kQuestionBatch;
    const std::int64_t first = next_question_ % (data_.questions.rows - count + 1);
    next_question_ += count;
    const auto result = session_->Attend(0, client::Rows(data_.question_tensor, first, count));
    if (!result.ok()) return result.status();
    const absl::Status status =
        Keep(result->answer, data_.questions, first, count, result->position, /*causal=*/false);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> MainJob::OutputsOf(const v1::Answer& answer,
                                                      std::int64_t count) const {
  auto outputs = client::ToFloats(answer.outputs());
  if (!outputs.ok()) return outputs.status();
  const std::int64_t expected = count * data_.values.row_size();
  if (static_cast<std::int64_t>(outputs->size()) != expected) {
    return absl::InternalError(absl::StrCat("outputs: ", outputs->size(), " numbers for ", count,
                                            " queries, expected ", expected));
  }
  return outputs;
}

absl::Status MainJob::Keep(const v1::Answer& answer, const Rows& queries, std::int64_t first,
                           std::int64_t count, std::int64_t visible, bool causal) {
  const auto outputs = OutputsOf(answer, count);
  if (!outputs.ok()) return outputs.status();
  for (std::int64_t i = 0; i < count; ++i) {
    const auto begin = outputs->begin() + i * data_.values.row_size();
    answered_.push_back({queries.row(first + i),
                         causal ? visible - count + i + 1 : visible,
                         {begin, begin + data_.values.row_size()}});
  }
  return absl::OkStatus();
}

Difference MainJob::CompareWithReference() const {
  Difference difference;
  const Reference reference(kind_, data_, double{scale_});
  for (const Answered& answer : answered_) {
    difference.Add(answer.outputs, reference.Answer(answer.query, answer.visible));
  }
  return difference;
}

absl::StatusOr<bool> MainJob::SameBitsWhenAppendedAtOnce() {
  auto session = Create();
  if (!session.ok()) return session.status();
  at_once_ = *std::move(session);
  const absl::Status status = at_once_->Append(Tokens(0, data_.keys.rows)).status();
  if (!status.ok()) return status;
  const auto pieces = session_->Attend(0, data_.question_tensor);
  const auto at_once = at_once_->Attend(0, data_.question_tensor);
  if (!pieces.ok()) return pieces.status();
  if (!at_once.ok()) return at_once.status();
  for (const AttendResult* result : {&*pieces, &*at_once}) {
    const auto outputs = OutputsOf(result->answer, data_.questions.rows);
    if (!outputs.ok()) return outputs.status();
  }
  return pieces->answer.outputs().data() == at_once->answer.outputs().data();
}

absl::Status MainJob::DeleteSessions() {
  absl::Status status = absl::OkStatus();
  for (const auto& session : {session_, at_once_}) {
    if (session != nullptr) status.Update(client_->DeleteSession(session->id()));
  }
  return status;
}

}  // namespace attnd::demo
