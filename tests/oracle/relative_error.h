// How far f32 answers are from the truth, as one number that a test can put a limit on.
#ifndef ATTND_ORACLE_RELATIVE_ERROR_H_
#define ATTND_ORACLE_RELATIVE_ERROR_H_

#include <vector>

namespace attnd::oracle {

// max |answer - truth| / max |truth|, both over the finite elements. Equal infinities are equal and
// count for neither. Infinity, which is above every limit, where the comparison has no meaning: a
// NaN on either side, an infinity on one side only or of the other sign, different sizes, nothing
// to compare, or answers other than 0 where the truth is 0 throughout.
double RelativeError(const std::vector<float>& answers, const std::vector<double>& truth);

}  // namespace attnd::oracle

#endif  // ATTND_ORACLE_RELATIVE_ERROR_H_
