// A published message as the log of a LOGGED session holds it: attnd.store.v1.LogRecord.
//
// Pure functions; thread-safe.
#ifndef ATTND_SERVER_LOG_RECORD_H_
#define ATTND_SERVER_LOG_RECORD_H_

#include <cstdint>
#include <string>

#include "attnd/store/v1/session_records.pb.h"
#include "attnd/v1/attention.pb.h"
#include "engine/digest.h"

namespace attnd::server {

struct LoggedMessage {
  std::uint64_t sequence = 0;  // from Session::Publish()
  engine::Digest digest;       // of the message
  engine::Digest queries;      // what its digest covers besides the tokens
};

// The record's bytes. The request is written into them once and not copied before.
std::string EncodeLogRecord(const LoggedMessage& message, const v1::AppendRequest& request);
std::string EncodeLogRecord(const LoggedMessage& message, const v1::StepRequest& request,
                            const v1::StepResponse& answer);

LoggedMessage MessageOf(const store::v1::LogRecord& record);

}  // namespace attnd::server

#endif  // ATTND_SERVER_LOG_RECORD_H_
