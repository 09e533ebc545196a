// The main job on one data set and one engine: tokens stream in, in uneven pieces and by every call
// the service has for it, queries are asked in between, and every answer is kept to be checked.
//
// Not thread-safe; one object per run.
#ifndef ATTND_CLIENT_DEMO_MAIN_JOB_H_
#define ATTND_CLIENT_DEMO_MAIN_JOB_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/demo/dataset.h"
#include "client/demo/difference.h"
#include "client/demo/reference.h"
#include "client/session.h"

namespace attnd::demo {

class MainJob {
 public:
  // Borrows `data`.
  MainJob(std::shared_ptr<client::Client> client, const Dataset& data, Kind kind);

  // Creates a session and streams all tokens and queries.
  absl::Status Run();

  std::int64_t queries() const { return static_cast<std::int64_t>(answered_.size()); }

  // Every answer against the f64 reference.
  Difference CompareWithReference() const;

  // Promise 1 of the contract: a second session that receives all tokens in one Append answers with
  // the same bits.
  absl::StatusOr<bool> SameBitsWhenAppendedAtOnce();

  absl::Status DeleteSessions();

 private:
  struct Answered {
    const float* query;
    std::int64_t visible;
    std::vector<float> outputs;
  };

  absl::StatusOr<std::shared_ptr<client::SessionHandle>> Create();
  // The outputs of `count` queries. INTERNAL if there are more or fewer.
  absl::StatusOr<std::vector<float>> OutputsOf(const v1::Answer& answer, std::int64_t count) const;
  client::LayerTokens Tokens(std::int64_t first, std::int64_t count) const;
  absl::Status AppendPiece(std::int64_t first, std::int64_t count);
  absl::Status StepPiece(std::int64_t first, std::int64_t count);
  absl::Status StreamPiece(std::int64_t first, std::int64_t count);
  // One-query calls and one of several queries.
  absl::Status AskQuestions();
  absl::Status Keep(const v1::Answer& answer, const Rows& queries, std::int64_t first,
                    std::int64_t count, std::int64_t visible, bool causal);

  std::shared_ptr<client::Client> client_;
  const Dataset& data_;
  const Kind kind_;
  const float scale_;
  std::shared_ptr<client::SessionHandle> session_;
  std::shared_ptr<client::SessionHandle> at_once_;
  std::unique_ptr<client::Stream> stream_;
  std::int64_t next_question_ = 0;
  std::vector<Answered> answered_;
};

}  // namespace attnd::demo

#endif  // ATTND_CLIENT_DEMO_MAIN_JOB_H_
