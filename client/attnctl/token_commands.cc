#include "client/attnctl/token_commands.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/error.h"
#include "client/npy.h"
#include "client/session.h"
#include "google/protobuf/struct.pb.h"

namespace attnd::attnctl {
namespace {

// The arrays of one layer's tokens, in memory.
struct TokenFiles {
  client::NpyFile keys;
  client::NpyFile values;
  client::NpyFile log_decays;
  client::NpyFile rates;
  client::LayerTokens tokens;
};

absl::StatusOr<client::NpyFile> Read(const std::string& path, const std::string& field,
                                     client::ConstTensor* tensor) {
  auto file = client::ReadNpyFile(path);
  if (!file.ok()) return file.status();
  auto view = client::TokensOf(file->array, absl::StrCat(field, " (", path, ")"));
  if (!view.ok()) return view.status();
  *tensor = *std::move(view);
  return file;
}

absl::StatusOr<std::string> ReadMask(const std::string& path) {
  const auto file = client::ReadNpyFile(path);
  if (!file.ok()) return file.status();
  if (file->array.type != client::NpyType::kU8 || file->array.shape.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("mask (", path, "): expected one dimension of type u1 or bool"));
  }
  return std::string(file->array.data.begin(), file->array.data.end());
}

absl::StatusOr<TokenFiles> ReadTokens(std::int64_t layer, const std::string& keys,
                                      const std::string& values, const std::string& mask,
                                      const GateFiles& gates) {
  TokenFiles files;
  files.tokens.layer = layer;
  auto key_file = Read(keys, "keys", &files.tokens.keys);
  if (!key_file.ok()) return key_file.status();
  auto value_file = Read(values, "values", &files.tokens.values);
  if (!value_file.ok()) return value_file.status();
  files.keys = *std::move(key_file);
  files.values = *std::move(value_file);
  if (!mask.empty()) {
    auto bytes = ReadMask(mask);
    if (!bytes.ok()) return bytes.status();
    files.tokens.mask = *std::move(bytes);
  }
  if (!gates.log_decays.empty()) {
    auto file = Read(gates.log_decays, "log_decays", &files.tokens.log_decays);
    if (!file.ok()) return file.status();
    files.log_decays = *std::move(file);
  }
  if (!gates.rates.empty()) {
    auto file = Read(gates.rates, "rates", &files.tokens.rates);
    if (!file.ok()) return file.status();
    files.rates = *std::move(file);
  }
  return files;
}

absl::StatusOr<std::shared_ptr<client::SessionHandle>> Attach(const Context& context,
                                                              const std::string& id) {
  const auto client = context.Connect();
  if (!client.ok()) return client.status();
  return (*client)->AttachSession(id);
}

// Where the tokens of a command go. A layer that the session does not have is for the call to
// refuse.
std::int64_t PositionFor(const client::SessionHandle& session, std::int64_t layer,
                         const std::optional<std::int64_t>& given) {
  if (given.has_value()) return *given;
  return layer >= 0 && layer < session.layers() ? session.position(layer) : 0;
}

// The same command alone would put tokens that did arrive a second time, after themselves.
absl::Status SayHowToRepeat(const absl::Status& status, std::int64_t position) {
  return client::WithMessage(
      status, absl::StrCat(status.message(),
                           " (to run the command again without counting tokens twice, add "
                           "--position ",
                           position, ")"));
}

// The failure of a call that sent tokens.
absl::Status SendFailure(const absl::Status& status, std::int64_t position) {
  const bool outcome_unknown = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
  return outcome_unknown ? SayHowToRepeat(status, position) : status;
}

// Before tokens are sent: a Step whose outputs cannot be stored would lose them.
absl::Status CheckWritable(const std::string& path) {
  const std::string probe = absl::StrCat(path, ".tmp", ::getpid());
  if (!std::ofstream(probe)) {
    return absl::PermissionDeniedError(absl::StrCat(path, ": cannot be written"));
  }
  std::remove(probe.c_str());
  return absl::OkStatus();
}

v1::DataType TypeOf(const std::string& name) { return name == "f16" ? v1::F16 : v1::F32; }

// Rows whose flag is not OK, by flag.
google::protobuf::Struct CountFlags(const std::string& flags) {
  google::protobuf::Struct counts;
  for (const char flag : flags) {
    if (flag == 0) continue;
    std::string name = v1::QueryFlag_IsValid(flag)
                           ? v1::QueryFlag_Name(static_cast<v1::QueryFlag>(flag))
                           : absl::StrCat("QUERY_FLAG_", static_cast<int>(flag));
    google::protobuf::Value& count = (*counts.mutable_fields())[name];
    count.set_number_value(count.number_value() + 1);
  }
  return counts;
}

google::protobuf::Value TopKJson(const v1::Answer& answer, std::int64_t rows) {
  google::protobuf::Value list;
  const auto weights = client::ToFloats(answer.top_k().weights());
  const std::int64_t per_row = rows > 0 ? answer.top_k().positions_size() / rows : 0;
  for (std::int64_t row = 0; weights.ok() && row < rows; ++row) {
    google::protobuf::ListValue* entry =
        list.mutable_list_value()->add_values()->mutable_list_value();
    for (std::int64_t i = row * per_row; i < (row + 1) * per_row; ++i) {
      const std::int64_t position = answer.top_k().positions(static_cast<int>(i));
      if (position < 0) continue;
      auto& fields = *entry->add_values()->mutable_struct_value()->mutable_fields();
      fields["position"].set_number_value(static_cast<double>(position));
      fields["weight"].set_number_value(double{(*weights)[static_cast<std::size_t>(i)]});
    }
  }
  return list;
}

void PrintTopK(const google::protobuf::Value& top, std::int64_t heads) {
  std::int64_t row = 0;
  for (const google::protobuf::Value& entry : top.list_value().values()) {
    std::string line = absl::StrCat("query ", row / heads);
    if (heads > 1) absl::StrAppend(&line, " head ", row % heads);
    absl::StrAppend(&line, ":");
    for (const google::protobuf::Value& pair : entry.list_value().values()) {
      const auto& fields = pair.struct_value().fields();
      absl::StrAppendFormat(&line, "  %.0f (%.4f)", fields.at("position").number_value(),
                            fields.at("weight").number_value());
    }
    absl::PrintF("%s\n", line);
    ++row;
  }
}

// Writes the outputs, and the stated errors where they are wanted.
absl::Status WriteFiles(const v1::Answer& answer, const std::string& out,
                        const EstimateFlags& flags) {
  const absl::Status written = client::WriteNpyFile(out, client::View(answer.outputs()));
  return written.ok() ? WriteErrors(flags, answer.estimates()) : written;
}

// What `attend` and `step` print; the outputs go to a file.
absl::Status Report(const Context& context, const v1::Answer& answer, std::int64_t position,
                    const std::string& out, std::int64_t replayed_messages) {
  const std::int64_t queries = answer.outputs().shape(0);
  const std::int64_t heads = answer.outputs().shape(1);
  const google::protobuf::Struct flags = CountFlags(answer.flags());
  const google::protobuf::Value top = TopKJson(answer, queries * heads);
  std::optional<EstimateSummary> estimates;
  if (answer.has_estimates()) {
    auto summary = Summarize(answer.estimates());
    if (!summary.ok()) return summary.status();
    estimates = *std::move(summary);
  }
  if (context.json) {
    google::protobuf::Struct report;
    auto& fields = *report.mutable_fields();
    fields["position"].set_number_value(static_cast<double>(position));
    fields["queries"].set_number_value(static_cast<double>(queries));
    fields["out"].set_string_value(out);
    fields["replayedMessages"].set_number_value(static_cast<double>(replayed_messages));
    *fields["flags"].mutable_struct_value() = flags;
    if (answer.has_top_k()) fields["topK"] = top;
    if (estimates) *fields["estimates"].mutable_struct_value() = ToJson(*estimates);
    PrintJson(report);
    return absl::OkStatus();
  }
  absl::PrintF("%d queries answered at position %d -> %s\n", queries, position, out);
  for (const auto& [name, count] : flags.fields()) {
    absl::PrintF("  %s: %.0f of %d rows\n", name, count.number_value(), queries * heads);
  }
  if (estimates) absl::PrintF("%s", Describe(*estimates));
  if (answer.has_top_k()) PrintTopK(top, heads);
  return absl::OkStatus();
}

}  // namespace

absl::Status Run(const Context& context, const AppendCommand& command) {
  const auto files =
      ReadTokens(command.layer, command.keys, command.values, command.mask, command.gates);
  if (!files.ok()) return files.status();
  const auto session = Attach(context, command.id);
  if (!session.ok()) return session.status();
  const std::int64_t position = PositionFor(**session, command.layer, command.position);
  const auto result = (*session)->AppendAt({&files->tokens, 1}, {&position, 1});
  if (!result.ok()) return SendFailure(result.status(), position);
  const std::int64_t rows = files->tokens.keys.rows();
  if (context.json) {
    google::protobuf::Struct report;
    auto& fields = *report.mutable_fields();
    fields["tokens"].set_number_value(static_cast<double>(rows));
    fields["position"].set_number_value(static_cast<double>(result->positions[0]));
    fields["messages"].set_number_value(static_cast<double>(result->messages));
    fields["replayedMessages"].set_number_value(static_cast<double>(result->replayed_messages));
    PrintJson(report);
    return absl::OkStatus();
  }
  absl::PrintF("%d tokens appended, position %d%s\n", rows, result->positions[0],
               result->replayed_messages > 0 ? " (some were there already)" : "");
  return absl::OkStatus();
}

absl::Status Run(const Context& context, const AttendCommand& command) {
  client::ConstTensor queries;
  const auto file = Read(command.queries, "queries", &queries);
  if (!file.ok()) return file.status();
  const auto session = Attach(context, command.id);
  if (!session.ok()) return session.status();
  client::AttendOptions options;
  options.min_position = command.min_position;
  options.wait = command.wait;
  if (command.query_position.has_value()) {
    options.query_positions.resize(static_cast<std::size_t>(queries.rows()));
    std::iota(options.query_positions.begin(), options.query_positions.end(),
              *command.query_position);
  }
  options.answer.set_output_dtype(TypeOf(command.dtype));
  options.answer.set_flags(true);
  options.answer.set_top_k(command.top_k);
  options.answer.set_estimates(WantsEstimates(command.estimates));
  options.accuracy = AccuracyOf(command.estimates);
  const auto result = (*session)->Attend(command.layer, queries, options);
  if (!result.ok()) {
    if (!command.wait || !absl::IsDeadlineExceeded(result.status())) return result.status();
    return absl::DeadlineExceededError(
        absl::StrCat("min_position is ", command.min_position, "; layer ", command.layer,
                     " was not there in time: wait longer (--timeout), or append first"));
  }
  const absl::Status written = WriteFiles(result->answer, command.out, command.estimates);
  if (!written.ok()) return written;
  return Report(context, result->answer, result->position, command.out, 0);
}

absl::Status Run(const Context& context, const StepCommand& command) {
  const auto files =
      ReadTokens(command.layer, command.keys, command.values, command.mask, command.gates);
  if (!files.ok()) return files.status();
  client::ConstTensor queries;
  const auto file = Read(command.queries, "queries", &queries);
  if (!file.ok()) return file.status();
  for (const std::string& path : {command.out, command.estimates.errors}) {
    if (path.empty()) continue;
    if (const absl::Status status = CheckWritable(path); !status.ok()) return status;
  }
  const auto session = Attach(context, command.id);
  if (!session.ok()) return session.status();
  client::StepOptions options;
  options.answer.set_output_dtype(TypeOf(command.dtype));
  options.answer.set_flags(true);
  options.answer.set_estimates(WantsEstimates(command.estimates));
  options.accuracy = AccuracyOf(command.estimates);
  const std::int64_t position = PositionFor(**session, command.layer, command.position);
  const auto result = (*session)->StepAt(files->tokens, position, queries, options);
  if (!result.ok()) return SendFailure(result.status(), position);
  const absl::Status written = WriteFiles(result->answer, command.out, command.estimates);
  // Of a longer call only the last message's answer is kept for a retry.
  if (!written.ok() && result->messages == 1) return SayHowToRepeat(written, position);
  if (!written.ok()) {
    return client::WithMessage(
        written, absl::StrCat(written.message(), " (the tokens were appended, up to position ",
                              result->position, "; do not run the command again)"));
  }
  return Report(context, result->answer, result->position, command.out, result->replayed_messages);
}

}  // namespace attnd::attnctl
