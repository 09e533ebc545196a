#include "server/log_record.h"

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/wire_format_lite.h"

namespace attnd::server {
namespace {

using google::protobuf::internal::WireFormatLite;

store::v1::LogRecord RecordOf(const LoggedMessage& message) {
  store::v1::LogRecord record;
  record.set_sequence(message.sequence);
  record.set_digest_high(message.digest.high);
  record.set_digest_low(message.digest.low);
  record.set_queries_high(message.queries.high);
  record.set_queries_low(message.queries.low);
  return record;
}

// Serialized messages may be concatenated: the fields of both are then there.
void AppendField(int number, const google::protobuf::MessageLite& message, std::string& bytes) {
  const std::size_t size = message.ByteSizeLong();
  bytes.reserve(bytes.size() + size + 16);
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream out(&stream);
    out.WriteTag(WireFormatLite::MakeTag(number, WireFormatLite::WIRETYPE_LENGTH_DELIMITED));
    out.WriteVarint64(size);
  }
  message.AppendToString(&bytes);
}

}  // namespace

std::string EncodeLogRecord(const LoggedMessage& message, const v1::AppendRequest& request) {
  std::string bytes = RecordOf(message).SerializeAsString();
  AppendField(store::v1::LogRecord::kAppendFieldNumber, request, bytes);
  return bytes;
}

std::string EncodeLogRecord(const LoggedMessage& message, const v1::StepRequest& request,
                            const v1::StepResponse& answer) {
  std::string bytes = RecordOf(message).SerializeAsString();
  AppendField(store::v1::LogRecord::kStepFieldNumber, request, bytes);
  AppendField(store::v1::LogRecord::kAnswerFieldNumber, answer, bytes);
  return bytes;
}

LoggedMessage MessageOf(const store::v1::LogRecord& record) {
  return {.sequence = record.sequence(),
          .digest = {record.digest_high(), record.digest_low()},
          .queries = {record.queries_high(), record.queries_low()}};
}

}  // namespace attnd::server
