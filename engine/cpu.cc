#include "engine/cpu.h"

#include <dnnl.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "hwy/targets.h"

namespace attnd::engine {
namespace {

// Highway's name for AVX-512 (F, BW, CD, DQ, VL) is AVX3; its bits order targets from best to
// worst.
constexpr std::int64_t kAvx512 = HWY_AVX3 | HWY_AVX3_DL;

// What loops are chosen from. Highway 1.0.3 chooses from all that the processor has, disabled or
// not, as a side effect of being asked, so the choice is made again.
std::int64_t ChooseTargets() {
  const std::int64_t targets = hwy::SupportedTargets();
  hwy::GetChosenTarget().Update(targets);
  return targets;
}

// As ChooseTargets() found it last; 0: not yet. Kept, so that other threads' loops never see the
// side effect.
std::atomic<std::int64_t> active_targets{0};

}  // namespace

absl::Status PinIsa(const std::string& isa) {
  if (isa != "native" && isa != "avx2" && isa != "avx512") {
    return absl::InvalidArgumentError(
        absl::StrCat("isa: \"", isa, "\" is not one of native, avx2, avx512"));
  }
  const std::int64_t supported = ChooseTargets();
  if ((supported & (kAvx512 | HWY_AVX2)) == 0) {
    return absl::FailedPreconditionError(
        "isa: the processor lacks AVX2 with FMA, which attnd needs");
  }
  if (isa == "avx512" && (supported & kAvx512) == 0) {
    return absl::FailedPreconditionError("isa: the processor lacks avx512");
  }
  const bool avx2 = isa == "avx2";
  // avx512_core is what Highway's AVX3 asks for as well; later extensions do not change f32
  // products.
  const bool avx512 = !avx2 && (supported & kAvx512) != 0;
  const dnnl_status_t status =
      dnnl_set_max_cpu_isa(avx512 ? dnnl_cpu_isa_avx512_core : dnnl_cpu_isa_avx2);
  if (status != dnnl_success) {
    return absl::FailedPreconditionError(
        absl::StrCat("isa: oneDNN was used before it could be pinned to ", isa, " (status ",
                     static_cast<int>(status), ")"));
  }
  hwy::DisableTargets(avx2 ? kAvx512 : 0);
  active_targets = ChooseTargets();
  return absl::OkStatus();
}

std::string ActiveIsa() {
  if (active_targets == 0) active_targets = ChooseTargets();
  const std::int64_t targets = active_targets;
  if ((targets & kAvx512) != 0) return "avx512";
  return (targets & HWY_AVX2) != 0 ? "avx2" : "unsupported";
}

}  // namespace attnd::engine
