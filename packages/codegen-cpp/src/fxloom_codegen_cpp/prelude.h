// What kernels of fxloom's C++ generator call. No includes: a system header costs more compile time than all kernels together.
// Float maths is branch-free so that it vectorises inside `omp simd` loops; accuracy is stated per function (ulp against the
// exact result) and tested in tests/test_maths.py. What is not here is the C library's.

typedef long long i64;
typedef unsigned long long u64;
typedef unsigned short u16;

extern "C" int omp_get_max_threads(void) noexcept;
extern "C" int omp_get_num_threads(void) noexcept;
extern "C" int omp_get_thread_num(void) noexcept;

// Zero, which the compiler can't know. Compilers make (float)(int)x a truncation, since what does not fit is undefined; but -0.5
// becomes a negative zero then. `(int)x ^ fxloom_zero` is an integer for good.
extern "C" int fxloom_zero;
int fxloom_zero = 0;

#define FXLOOM_INLINE static inline __attribute__((always_inline))

FXLOOM_INLINE float bits_to_f32(int bits) { float value; __builtin_memcpy(&value, &bits, 4); return value; }
FXLOOM_INLINE int f32_to_bits(float value) { int bits; __builtin_memcpy(&bits, &value, 4); return bits; }

// bfloat16 lies in memory as the upper half of a float32.
FXLOOM_INLINE float bf16_to_f32(u16 value) { return bits_to_f32((int)((unsigned)value << 16)); }
FXLOOM_INLINE u16 f32_to_bf16(float value) {
    const unsigned bits = (unsigned)f32_to_bits(value);
    const unsigned rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;  // to nearest even
    return (u16)(value != value ? 0x7fc0u : rounded);
}

// Terms of a sum that are added in the type of the terms, before a wider one goes on: 16 vectors of float32, so that each lane
// adds 16. Errors then are those of eager's sums, or smaller, whatever the width of vectors and the length of the row.
#if defined(__AVX512F__)
#define FXLOOM_SUM_BLOCK 256
#elif defined(__AVX__)
#define FXLOOM_SUM_BLOCK 128
#else
#define FXLOOM_SUM_BLOCK 64
#endif

// a * b + c rounded once where the machine can do it in one instruction
FXLOOM_INLINE float madd(float a, float b, float c) {
#ifdef __FMA__
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}
FXLOOM_INLINE double madd(double a, double b, double c) {
#ifdef __FMA__
    return __builtin_fma(a, b, c);
#else
    return a * b + c;
#endif
}

// NaN wins. Two plain selections: with one condition made of two, GCC 12 keeps branches and makes no vectors.
template <typename T> FXLOOM_INLINE T maximum(T a, T b) {
    const T larger = a > b ? a : b;
    return a != a ? a : larger;
}
template <typename T> FXLOOM_INLINE T minimum(T a, T b) {
    const T smaller = a < b ? a : b;
    return a != a ? a : smaller;
}

// log(exp(a) + exp(b)); the difference of equal infinities would be NaN
FXLOOM_INLINE double log_add_exp(double a, double b) {
    const double larger = maximum(a, b), smaller = minimum(a, b);
    return larger == smaller & __builtin_fabs(a) == __builtin_inf() ? a : larger + __builtin_log1p(__builtin_exp(smaller - larger));
}

template <typename T> FXLOOM_INLINE T sign(T a) { return (T)((a > T(0)) - (a < T(0))); }

// Integer division and remainder; b == 0 gives 0 (the remainder: a) instead of a trap, as does the lowest number by -1.
template <typename T> FXLOOM_INLINE bool is_minus_one(T b) { return T(-1) < T(0) && b == T(-1); }  // no unsigned number is
template <typename T> FXLOOM_INLINE T trunc_div(T a, T b) {
    const T d = b == T(0) | is_minus_one(b) ? T(1) : b;
    const T q = (T)(a / d);
    return is_minus_one(b) ? (T)(T(0) - q) : q;
}
template <typename T> FXLOOM_INLINE T fmod_int(T a, T b) {
    const T d = b == T(0) | is_minus_one(b) ? T(1) : b;
    return (T)(a % d);
}
// The same rounding to minus infinity.
template <typename T> FXLOOM_INLINE T floor_div(T a, T b) {
    const T rest = fmod_int<T>(a, b);
    return (T)(trunc_div<T>(a, b) - (T)(rest != T(0) & (rest < T(0)) != (b < T(0))));
}
template <typename T> FXLOOM_INLINE T remainder_int(T a, T b) {
    const T rest = fmod_int<T>(a, b);
    return (T)(rest != T(0) & (rest < T(0)) != (b < T(0)) ? rest + b : rest);
}
FXLOOM_INLINE float remainder_float(float a, float b) {
    const float r = __builtin_fmodf(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
FXLOOM_INLINE double remainder_float(double a, double b) {
    const double r = __builtin_fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

// Shifts by a count outside [0, bits) shift everything out.
template <typename T> FXLOOM_INLINE T shift_left(T a, T b) {
    const bool inside = b >= T(0) && b < T(sizeof(T) * 8);
    return inside ? (T)((u64)a << (inside ? b : T(0))) : T(0);
}
template <typename T> FXLOOM_INLINE T shift_right(T a, T b) {
    const bool inside = b >= T(0) && b < T(sizeof(T) * 8);
    return (T)(a >> (inside ? b : T(sizeof(T) * 8 - 1))) * T(inside || a < T(0));
}

// 1.0 ulp. e^x = 2^n e^r with |r| <= ln 2 / 2; 2^n is applied in two steps, so that results near 0 round once.
FXLOOM_INLINE float exp_f32(float x) {
    x = x < -104.0f ? -104.0f : x;
    x = x > 89.0f ? 89.0f : x;
    const float n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
    float r = madd(n, -0.693359375f, x);
    r = madd(n, 2.12194440e-4f, r);
    float p = 0.00138131424f;
    p = madd(p, r, 0.00836941904f);
    p = madd(p, r, 0.0416684568f);
    p = madd(p, r, 0.166665148f);
    p = madd(p, r, 0.499999931f);
    const float y = madd(p, r * r, r) + 1.0f;
    const int whole = (int)n;
    const int half = whole >> 1;
    return y * bits_to_f32((half + 127) << 23) * bits_to_f32((whole - half + 127) << 23);
}

// 1.0 ulp
FXLOOM_INLINE float erf_f32(float x) {
    const float t = __builtin_fabsf(x) > 4.0f ? 4.0f : __builtin_fabsf(x);
    const float s = x * x;
    // erf(x) = x + x P(x^2) near 0
    float near = 8.3496005e-05f;
    near = madd(near, s, -0.000813785171f);
    near = madd(near, s, 0.00520060426f);
    near = madd(near, s, -0.0268592255f);
    near = madd(near, s, 0.112836924f);
    near = madd(near, s, -0.376126335f);
    near = madd(near, s, 0.128379167f);
    near = madd(near, x, x);
    // erf(x) = 1 - exp(Q(x) - x) away from 0
    float far = -4.70625085e-07f;
    far = madd(far, t, -1.50292365e-05f);
    far = madd(far, t, 0.000401009199f);
    far = madd(far, t, -0.00406791119f);
    far = madd(far, t, 0.0249248355f);
    far = madd(far, t, -0.108049981f);
    far = madd(far, t, -0.633513588f);
    far = madd(far, t, -0.129447263f);
    far = madd(far, t, 0.000162887402f);
    far = __builtin_copysignf(1.0f - exp_f32(far - t), x);
    return __builtin_fabsf(x) > 0.925f ? far : (x != x ? x : near);
}

// 1.3 ulp
FXLOOM_INLINE float tanh_f32(float x) {
    const float s = x * x;
    float near = -0.00628246672f;
    near = madd(near, s, 0.0210777534f);
    near = madd(near, s, -0.0538538566f);
    near = madd(near, s, 0.133326017f);
    near = madd(near, s, -0.33333318f);
    near = madd(near * s, x, x);
    const float t = __builtin_fabsf(x);
    const float far = __builtin_copysignf(1.0f - 2.0f / (exp_f32(t + t) + 1.0f), x);
    return t > 0.55f ? far : (x == 0.0f ? x : near);
}

// 2 ulp
FXLOOM_INLINE float sigmoid_f32(float x) { return 1.0f / (1.0f + exp_f32(-x)); }

// log(1 + f) - f + f^2 / 2 for 1 + f in [sqrt(1/2), sqrt 2)
FXLOOM_INLINE float log_cubic(float f) {
    float p = -0.0763442984f;
    p = madd(p, f, 0.127615503f);
    p = madd(p, f, -0.131601951f);
    p = madd(p, f, 0.142017625f);
    p = madd(p, f, -0.166233565f);
    p = madd(p, f, 0.200012267f);
    p = madd(p, f, -0.250008211f);
    p = madd(p, f, 0.333333317f);
    return p * (f * f * f);
}

// 1 ulp. log(x) = k ln 2 + log(1 + f) with 1 + f in [sqrt(1/2), sqrt 2)
FXLOOM_INLINE float log_f32(float x) {
    const bool tiny = x < 1.17549435e-38f;
    const int bits = f32_to_bits(tiny ? x * 8388608.0f : x);
    const int k = (bits - 0x3f3504f3) >> 23;
    const float f = bits_to_f32(bits - (int)((unsigned)k << 23)) - 1.0f;
    const float scale = (float)(k - (tiny ? 23 : 0));
    float y = log_cubic(f);
    y = madd(scale, -2.12194440e-4f, y);
    y = madd(-0.5f, f * f, y);
    y = madd(scale, 0.693359375f, f + y);
    y = x == 0.0f ? -__builtin_inff() : y;
    y = x < 0.0f ? __builtin_nanf("") : y;
    return x != x || x == __builtin_inff() ? x : y;
}

// 1 ulp. 2^x = 2^n 2^r with |r| <= 1/2
FXLOOM_INLINE float exp2_f32(float x) {
    x = x < -151.0f ? -151.0f : x;
    x = x > 129.0f ? 129.0f : x;
    const float n = (x + 12582912.0f) - 12582912.0f;
    const float r = x - n;
    float p = 1.533757683e-4f;
    p = madd(p, r, 1.339986036e-3f);
    p = madd(p, r, 9.618519534e-3f);
    p = madd(p, r, 5.550328998e-2f);
    p = madd(p, r, 0.2402264661f);
    p = madd(p, r, 0.6931472056f);
    const float y = madd(p, r, 1.0f);
    const int whole = (int)n;
    const int half = whole >> 1;
    return y * bits_to_f32((half + 127) << 23) * bits_to_f32((whole - half + 127) << 23);
}

// 2 ulp. e^x - 1 = 2^n (e^r - 1) + (2^n - 1), all halved, so that 2^n is a float
FXLOOM_INLINE float expm1_f32(float x) {
    float a = x < -18.0f ? -18.0f : x;
    a = a > 89.0f ? 89.0f : a;
    const float n = (a * 1.44269504f + 12582912.0f) - 12582912.0f;
    float r = madd(n, -0.693359375f, a);
    r = madd(n, 2.12194440e-4f, r);
    float q = 1.984956601e-4f;
    q = madd(q, r, 1.39338396e-3f);
    q = madd(q, r, 8.333373589e-3f);
    q = madd(q, r, 4.16664634e-2f);
    q = madd(q, r, 0.1666666649f);
    q = madd(q, r, 0.5f);
    const float p = madd(q, r * r, r);
    const float t = bits_to_f32(((int)n + 126) << 23);
    return __builtin_fabsf(x) < 1e-8f ? x : 2.0f * madd(t, p, t - 0.5f);
}

// 2 ulp. log(1 + x) = log(u) + (x - (u - 1)) / u with u = 1 + x rounded
FXLOOM_INLINE float log1p_f32(float x) {
    const float u = 1.0f + x;
    const float lost = (x < 1.0f ? x - (u - 1.0f) : 1.0f - (u - x)) / u;
    const int bits = f32_to_bits(u);
    const int k = (bits - 0x3f3504f3) >> 23;
    const float f = bits_to_f32(bits - (int)((unsigned)k << 23)) - 1.0f;
    const float scale = (float)k;
    float y = log_cubic(f) + lost;
    y = madd(scale, -2.12194440e-4f, y);
    y = madd(-0.5f, f * f, y);
    y = madd(scale, 0.693359375f, f + y);
    y = x == -1.0f ? -__builtin_inff() : y;
    y = x < -1.0f ? __builtin_nanf("") : y;
    return x != x || x == __builtin_inff() || x == 0.0f ? x : y;
}

// 1 to 2 ulp; whole for powers of 2. log2(x) = k + log2(1 + f)
FXLOOM_INLINE float log2_f32(float x) {
    const bool tiny = x < 1.17549435e-38f;
    const int bits = f32_to_bits(tiny ? x * 8388608.0f : x);
    const int k = (bits - 0x3f3504f3) >> 23;
    const float f = bits_to_f32(bits - (int)((unsigned)k << 23)) - 1.0f;
    float p = 0.0965640774f;
    p = madd(p, f, -0.1660925467f);
    p = madd(p, f, 0.1705509064f);
    p = madd(p, f, -0.1793106804f);
    p = madd(p, f, 0.2053259614f);
    p = madd(p, f, -0.2404550629f);
    p = madd(p, f, 0.2885597791f);
    p = madd(p, f, -0.3606740425f);
    p = madd(p, f, 0.4808981968f);
    p = madd(p, f, -0.7213475193f);
    float y = madd(p, f * f, f * 1.92596303e-8f);
    y = madd(f, 1.44269502f, y) + (float)(k - (tiny ? 23 : 0));
    y = x == 0.0f ? -__builtin_inff() : y;
    y = x < 0.0f ? __builtin_nanf("") : y;
    return x != x || x == __builtin_inff() ? x : y;
}

// 2 ulp
FXLOOM_INLINE float log10_f32(float x) {
    const bool tiny = x < 1.17549435e-38f;
    const int bits = f32_to_bits(tiny ? x * 8388608.0f : x);
    const int k = (bits - 0x3f3504f3) >> 23;
    const float f = bits_to_f32(bits - (int)((unsigned)k << 23)) - 1.0f;
    const float scale = (float)(k - (tiny ? 23 : 0));
    float y = madd(-0.5f, f * f, log_cubic(f)) * 0.434294482f;
    y = madd(scale, 4.60503907e-6f, y);
    y = madd(f, 0.434294482f, y);
    y = madd(scale, 0.301025391f, y);
    y = x == 0.0f ? -__builtin_inff() : y;
    y = x < 0.0f ? __builtin_nanf("") : y;
    return x != x || x == __builtin_inff() ? x : y;
}

// 3 ulp, by e^x - 1; where that overflows, (e^(x/2))^2 / 2
FXLOOM_INLINE float sinh_f32(float x) {
    const float t = __builtin_fabsf(x);
    const float e = expm1_f32(t > 88.0f ? 0.0f : t);
    const float h = exp_f32(0.5f * t);
    return __builtin_copysignf(t > 88.0f ? 0.5f * h * h : 0.5f * (e + e / (e + 1.0f)), x);
}

// 2 ulp
FXLOOM_INLINE float cosh_f32(float x) {
    const float t = __builtin_fabsf(x);
    const float e = exp_f32(t > 88.0f ? 0.0f : t);
    const float h = exp_f32(0.5f * t);
    return t > 88.0f ? 0.5f * h * h : 0.5f * e + 0.5f / e + (x - x);
}

// 2 ulp. atan(x) = pi/2 - atan(1/x) beyond 1
FXLOOM_INLINE float atan_f32(float x) {
    const float t = __builtin_fabsf(x);
    const float z = t > 1.0f ? 1.0f / t : t;
    const float w = z * z;
    float p = 1.474559606e-3f;
    p = madd(p, w, -9.080187793e-3f);
    p = madd(p, w, 2.618233307e-2f);
    p = madd(p, w, -4.883430158e-2f);
    p = madd(p, w, 7.024323789e-2f);
    p = madd(p, w, -8.929135235e-2f);
    p = madd(p, w, 0.1108772287f);
    p = madd(p, w, -0.1428394941f);
    p = madd(p, w, 0.1999994719f);
    p = madd(p, w, -0.3333333307f);
    const float a = madd(p * w, z, z);
    return __builtin_copysignf(t > 1.0f ? 1.57079637f - (a + 4.37113883e-8f) : a, x);
}

// asin(z) for 0 <= z <= 1/2, with w = z^2
FXLOOM_INLINE float small_asin(float z, float w) {
    float p = 3.368482943e-2f;
    p = madd(p, w, 1.715299988e-2f);
    p = madd(p, w, 3.109983989e-2f);
    p = madd(p, w, 4.459947498e-2f);
    p = madd(p, w, 7.500094314e-2f);
    p = madd(p, w, 0.1666666634f);
    return madd(p * w, z, z);
}

// 2 ulp. asin(x) = pi/2 - 2 asin(sqrt((1 - x) / 2)) beyond 1/2
FXLOOM_INLINE float asin_f32(float x) {
    const float t = __builtin_fabsf(x);
    const float w = t > 0.5f ? (1.0f - t) * 0.5f : t * t;
    const float a = small_asin(t > 0.5f ? __builtin_sqrtf(w) : t, w);
    return __builtin_copysignf(t > 0.5f ? 1.57079637f - (2.0f * a + 4.37113883e-8f) : a, x);
}

// 2 ulp
FXLOOM_INLINE float acos_f32(float x) {
    const float t = __builtin_fabsf(x);
    const float w = t > 0.5f ? (1.0f - t) * 0.5f : t * t;
    const float a = small_asin(t > 0.5f ? __builtin_sqrtf(w) : t, w);
    const float far = x > 0.0f ? 2.0f * a : 3.14159274f - (2.0f * a + 8.74227766e-8f);
    return t > 0.5f ? far : 1.57079637f - (__builtin_copysignf(a, x) + 4.37113883e-8f);
}

// 2 ulp. erfc(x) = e^(-x^2) erfcx(x), with erfcx(x) (1 + x/2) as a fit in 2 / (2 + x), away from 0; 1 - erf(x) near 0
FXLOOM_INLINE float erfc_f32(float x) {
    const float a = __builtin_fabsf(x);
    const double t = 2.0 / (2.0 + (double)(a > 10.6f ? 10.6f : a));
    const double d = t - 0.5;
    double p = -0.03208051572;
    p = madd(p, d, -0.06935979256);
    p = madd(p, d, 0.05762640325);
    p = madd(p, d, 0.09768528446);
    p = madd(p, d, -0.1039302645);
    p = madd(p, d, -0.1720457952);
    p = madd(p, d, 0.1457754443);
    p = madd(p, d, 0.558943733);
    p = madd(p, d, 0.6871606408);
    p = madd(p, d, 0.5107913534);
    const double square = (double)a * a;
    const float s = (float)square;
    const float e = exp_f32(-s);
    const float lost = a < 11.0f ? (float)(square - s) : 0.0f;
    const float far = (float)((double)madd(-e, lost, e) * (t * p));
    const float near = 1.0f - erf_f32(x);
    return a < 0.5f ? near : (x < 0.0f ? 2.0f - far : far);
}

#ifdef __FMA__
// 2^k less the nearest multiple of 2 pi, and what that lacks.
static const double fxloom_turns[106] = {
    1.0, 2.0, -2.2831853071795867, 1.7168146928204135, -2.8495559215387596, 0.5840734641020676, 1.1681469282041352, 2.3362938564082705,
    -1.6105975943630455, 3.0619901184534952, -0.15920507027259573, -0.31841014054519146, -0.6368202810903829, -1.2736405621807658,
    -2.5472811243615316, 1.188623058456523, 2.377246116913046, -1.5286930733534951, -3.0573861467069903, 0.1684130137656059,
    0.3368260275312118, 0.6736520550624236, 1.3473041101248473, 2.6946082202496946, -0.8939688666801969, -1.7879377333603939,
    2.707309840458799, -0.868565626261989, -1.737131252523978, 2.8089228021316304, -0.6653397029163253, -1.3306794058326505,
    -2.661358811665301, 0.960467683848984, 1.920935367697968, -2.441314571783651, 1.400556163612285, 2.80111232722457, -0.680960652730447,
    -1.361921305460894, -2.723842610921788, 0.8355000853360102, 1.6710001706720203, -2.941184965835546, 0.4008153755084947,
    0.8016307510169894, 1.6032615020339789, -3.0766623031116285, 0.12986070095632937, 0.25972140191265874, 0.5194428038253175,
    1.038885607650635, 2.07777121530127, -2.1276428765770463, 2.0278995540254936, -2.2273861991285995, 1.8284129089223877,
    -2.626359489334811, 1.030466328509965, 2.06093265701993, -2.161319993139727, 1.9605453209001322, -2.362094665379322,
    1.5589959764209427, 3.1179919528418854, -0.047201401495815684, -0.09440280299163137, -0.18880560598326274, -0.3776112119665255,
    -0.755222423933051, -1.510444847866102, -3.020889695732204, 0.24140591571517903, 0.48281183143035805, 0.9656236628607161,
    1.9312473257214322, -2.420690655736722, 1.4418039957061426, 2.883607991412285, -0.5159693243550164, -1.0319386487100328,
    -2.0638772974200656, 2.1554307123394554, -1.972323882500676, 2.338537542178235, -1.606110222823117, 3.0709648615333527,
    -0.14125558411288136, -0.2825111682257627, -0.5650223364515254, -1.1300446729030509, -2.2600893458061018, 1.7630066155673831,
    -2.7571720760448204, 0.7688411550899459, 1.5376823101798918, 3.0753646203597835, -0.13245606646001967, -0.26491213292003934,
    -0.5298242658400787, -1.0596485316801574, -2.1192970633603148, 2.0445911804589567, -2.194002946261673, 1.895179414656241,
    -2.492826477867104,
};
static const double fxloom_turns_rest[106] = {
    0.0, 0.0, 1.9915985002059197e-16, -2.2884754904439327e-17, 1.5339034021171333e-16, -3.4014720596809827e-18, -6.802944119361965e-18,
    -1.360588823872393e-17, -5.009653138188719e-17, 1.4473629706569626e-16, -1.0967916929335949e-17, -2.1935833858671898e-17,
    -4.3871667717343795e-17, -8.774333543468759e-17, -1.7548667086937518e-16, -1.0604398190927974e-16, -2.120879638185595e-16,
    -2.971472691495685e-18, -5.94294538299137e-18, 1.0998864138456587e-17, 2.1997728276913175e-17, 4.399545655382635e-17,
    8.79909131076527e-17, 1.759818262153054e-16, -3.988009861375488e-18, -7.976019722750976e-18, -2.1511188946609392e-16,
    -9.019323986564577e-18, -1.8038647973129154e-17, 2.0885206388321233e-16, -4.9269836988077296e-17, -9.853967397615459e-17,
    -1.9707934795230919e-16, -3.820703361263207e-17, -7.641406722526414e-17, 4.63317155700637e-17, -1.0649641888046457e-16,
    -2.1299283776092915e-16, -4.781220576235026e-18, -9.562441152470052e-18, -1.9124882304940104e-17, -1.5365009705440884e-17,
    -3.073001941088177e-17, 1.3769981119882845e-16, 2.0728621145807084e-17, 4.145724229161417e-17, 8.291448458322833e-17,
    -7.910039066301396e-17, 3.4618516565559846e-18, 6.923703313111969e-18, 1.3847406626223939e-17, 2.7694813252447877e-17,
    5.5389626504895754e-17, -1.3415010681967913e-16, -2.337085380988763e-17, 1.5241814240081672e-16, 1.0567643478104146e-16,
    -3.3576490267387724e-17, -4.426822563033612e-17, -8.853645126067224e-17, 2.2086947499247497e-17, 6.705864990293432e-17,
    -1.1081206002360199e-16, 2.3305239782266665e-17, 4.661047956453333e-17, 9.4726518555505e-19, 1.8945303711101e-18, 3.7890607422202e-18,
    7.5781214844404e-18, 1.51562429688808e-17, 3.03124859377616e-17, 6.06249718755232e-17, 5.356820577341173e-18, 1.0713641154682347e-17,
    2.1427282309364693e-17, 4.2854564618729387e-17, -1.5922023059201187e-16, -7.351110135455308e-17, -1.4702220270910616e-16,
    1.6137747064895307e-17, 3.2275494129790613e-17, 6.455098825958123e-17, -7.005787350142952e-17, 5.904410301773294e-17,
    -8.107164398512609e-17, 3.7016562050339816e-17, -1.2512672591991234e-16, 4.417549412025121e-18, 8.835098824050243e-18,
    1.7670197648100485e-17, 3.534039529620097e-17, 7.068079059240194e-17, -5.779826883578811e-17, 8.356331234901577e-17,
    -3.203322532256044e-17, -6.406645064512088e-17, -1.2813290129024176e-16, -1.5948013286337e-18, -3.1896026572674e-18,
    -6.3792053145348e-18, -1.27584106290696e-17, -2.55168212581392e-17, 1.9389571731319223e-16, 1.4286207479691384e-16,
    8.656429957323569e-17, -7.180076068299926e-17,
};

// x as n pi/2 + r with |r| <= pi/4. A float beyond 2^24 is a whole number times 2^k; it is reduced first by the table.
struct Quarter { int n; float r; };
FXLOOM_INLINE Quarter quarter(float x) {
    const int exponent = (f32_to_bits(x) >> 23 & 255) - 150;
    const int k = exponent > 0 ? exponent : 0;
    const double m = (double)(x * bits_to_f32((127 - k) << 23));
    const double y = m * fxloom_turns[k];
    const double rest = __builtin_fma(m, fxloom_turns[k], -y) + m * fxloom_turns_rest[k];
    const double n = __builtin_rint(y * 0.63661977236758138);
    const double r = __builtin_fma(n, -1.5707963267948966, y) + __builtin_fma(n, -6.123233995736766e-17, rest);
    return {(int)n, (float)r};
}
FXLOOM_INLINE float small_sin(float r) {
    const float w = r * r;
    float p = 2.724859151e-6f;
    p = madd(p, w, -1.984007556e-4f);
    p = madd(p, w, 8.333331852e-3f);
    p = madd(p, w, -0.1666666666f);
    return madd(p * w, r, r);
}
FXLOOM_INLINE float small_cos(float r) {
    const float w = r * r;
    float p = 2.454691394e-5f;
    p = madd(p, w, -1.388829767e-3f);
    p = madd(p, w, 4.166664463e-2f);
    return madd(p, w * w, madd(-0.5f, w, 1.0f));
}

// 1.5 ulp, for arguments of any size
FXLOOM_INLINE float sin_f32(float x) {
    const Quarter part = quarter(x);
    const float y = part.n & 1 ? small_cos(part.r) : small_sin(part.r);
    return x == 0.0f ? x : bits_to_f32(f32_to_bits(y) ^ (part.n & 2) << 30);
}
FXLOOM_INLINE float cos_f32(float x) {
    const Quarter part = quarter(x);
    const float y = part.n & 1 ? small_sin(part.r) : small_cos(part.r);
    return bits_to_f32(f32_to_bits(y) ^ ((part.n + 1) & 2) << 30);
}
// 3 ulp
FXLOOM_INLINE float tan_f32(float x) {
    const Quarter part = quarter(x);
    const float s = small_sin(part.r), c = small_cos(part.r);
    const float y = part.n & 1 ? -c / s : s / c;
    return x == 0.0f ? x : y;
}
#else
FXLOOM_INLINE float sin_f32(float x) { return __builtin_sinf(x); }
FXLOOM_INLINE float cos_f32(float x) { return __builtin_cosf(x); }
FXLOOM_INLINE float tan_f32(float x) { return __builtin_tanf(x); }
#endif

// Philox 4x32-10 (Salmon et al. 2011), keyed by seed, counted by position: what `rand`, `randn` and `randint64` of the loop IR mean.
struct PhiloxWords { unsigned w0, w1; };
FXLOOM_INLINE PhiloxWords philox(i64 seed, i64 position) {
    unsigned c0 = (unsigned)position, c1 = (unsigned)((u64)position >> 32), c2 = 0, c3 = 0;
    unsigned k0 = (unsigned)seed, k1 = (unsigned)((u64)seed >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
        const u64 p0 = (u64)c0 * 0xd2511f53u, p1 = (u64)c2 * 0xcd9e8d57u;
        c0 = (unsigned)(p1 >> 32) ^ c1 ^ k0;
        c1 = (unsigned)p1;
        c2 = (unsigned)(p0 >> 32) ^ c3 ^ k1;
        c3 = (unsigned)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return {c0, c1};
}
FXLOOM_INLINE float philox_rand(i64 seed, i64 position) { return (float)(int)(philox(seed, position).w0 >> 8) * 5.9604644775390625e-8f; }
FXLOOM_INLINE float philox_randn(i64 seed, i64 position) {
    const PhiloxWords words = philox(seed, position);
    const float u = (float)words.w0 * 2.3283064365386963e-10f + 1.1641532182693481e-10f;
    // cos(2 pi t) = -sin(2 pi a) with a = 1/4 - |t - 1/2|, which is exact
    const float a = 0.25f - __builtin_fabsf((float)(int)(words.w1 >> 8) * 5.9604644775390625e-8f - 0.5f);
    const float s = a * a;
    float p = -14.423968f;
    p = madd(p, s, 42.0141013f);
    p = madd(p, s, -76.7044955f);
    p = madd(p, s, 81.6052305f);
    p = madd(p, s, -41.3417021f);
    p = madd(p, s, 6.28318531f);
    return __builtin_sqrtf(-2.0f * log_f32(u)) * (-a * p);
}
FXLOOM_INLINE i64 philox_randint64(i64 seed, i64 position, i64 low, i64 high) {
    const PhiloxWords words = philox(seed, position);
    return low + (((i64)(words.w1 & 0x7fffffffu) << 32) | (i64)words.w0) % (high - low);
}

#pragma omp declare reduction(nan_max : float : omp_out = maximum(omp_in, omp_out)) initializer(omp_priv = -__builtin_inff())
#pragma omp declare reduction(nan_min : float : omp_out = minimum(omp_in, omp_out)) initializer(omp_priv = __builtin_inff())
#pragma omp declare reduction(nan_max : double : omp_out = maximum(omp_in, omp_out)) initializer(omp_priv = -__builtin_inf())
#pragma omp declare reduction(nan_min : double : omp_out = minimum(omp_in, omp_out)) initializer(omp_priv = __builtin_inf())
