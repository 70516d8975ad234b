// Randomness is passed in: no layer draws from a hidden generator.
// message: no matching function for call to .*Linear|no matching constructor for initialization of .*Linear
namespace layer_without_rng {
using namespace sluice;
#ifdef MISTAKE
Linear f() { return Linear({.in = 4, .out = 8}); }
#else
Linear f(Rng& rng) { return Linear({.in = 4, .out = 8}, rng); }
#endif
}  // namespace layer_without_rng
