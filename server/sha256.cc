#include "server/sha256.h"

#include <openssl/evp.h>

#include <new>

#include "absl/strings/escaping.h"

namespace attnd::server {
namespace {

// OpenSSL's digests fail for lack of memory only.
void Check(int result) {
  if (result != 1) throw std::bad_alloc();
}

}  // namespace

struct Sha256::State {
  State() : context(EVP_MD_CTX_new()) { Check(context == nullptr ? 0 : 1); }
  ~State() { EVP_MD_CTX_free(context); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  EVP_MD_CTX* const context;
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  Check(EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr));
}

Sha256::~Sha256() = default;

void Sha256::Update(const std::string& bytes) {
  Check(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()));
}

Sha256Digest Sha256::Finish() {
  Sha256Digest digest;
  Check(EVP_DigestFinal_ex(state_->context, digest.data(), nullptr));
  return digest;
}

std::string ToHex(const Sha256Digest& digest) {
  return absl::BytesToHexString(std::string(digest.begin(), digest.end()));
}

}  // namespace attnd::server
