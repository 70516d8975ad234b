// Options that name their type: the compiler then names the field that is not there.
// message: GauOptions.* has no non-static data member named .*dmi|field designator 'dmi' does not refer to any field in
// type '(sluice::)?GauOptions'
namespace option_misspelt {
using namespace sluice;
#ifdef MISTAKE
Gau f(Rng& rng) { return Gau(GauOptions{.dmi = 16, .causal = true}, rng); }
#else
Gau f(Rng& rng) { return Gau(GauOptions{.dim = 16, .causal = true}, rng); }
#endif
}  // namespace option_misspelt
