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

// float16 by arithmetic on integers, of which GCC makes vectors. Numbers below 2^-14 have no leading one in their bits: they are
// sums with a float whose last place is theirs.
FXLOOM_INLINE float f16_to_f32(u16 value) {
    const unsigned parts = (unsigned)(value & 0x7fff) << 13, exponent = parts & 0x0f800000u;
    const unsigned small = (unsigned)f32_to_bits(bits_to_f32((int)(parts + 0x38800000u)) - bits_to_f32(0x38800000));
    const unsigned normal = parts + (exponent == 0x0f800000u ? 0x70000000u : 0x38000000u);
    return bits_to_f32((int)((exponent ? normal : small) | (unsigned)(value & 0x8000) << 16));
}
FXLOOM_INLINE u16 f32_to_f16(float value) {
    const unsigned bits = (unsigned)f32_to_bits(value), parts = bits & 0x7fffffffu;
    const unsigned small = (unsigned)f32_to_bits(bits_to_f32((int)parts) + 0.5f) - 0x3f000000u;
    const unsigned normal = (parts - 0x38000000u + 0xfffu + (parts >> 13 & 1u)) >> 13;
    const unsigned large = parts > 0x7f800000u ? 0x7e00u : 0x7c00u;
    const unsigned found = parts >= 0x47800000u ? large : parts < 0x38800000u ? small : normal;
    return (u16)(found | bits >> 16 & 0x8000u);
}

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

// c ? a : b without a branch, for conditions made of several and beside calls, where compilers would keep one
template <int Bytes> struct Bits;
template <> struct Bits<1> { typedef signed char type; };
template <> struct Bits<2> { typedef short type; };
template <> struct Bits<4> { typedef int type; };
template <> struct Bits<8> { typedef i64 type; };
template <typename T> FXLOOM_INLINE T blend(bool c, T a, T b) {
    typedef typename Bits<sizeof(T)>::type bits;
    bits x, y;
    __builtin_memcpy(&x, &a, sizeof(T));
    __builtin_memcpy(&y, &b, sizeof(T));
    const bits mask = (bits)-(bits)c, chosen = (bits)((x & mask) | (y & (bits)~mask));
    T result;
    __builtin_memcpy(&result, &chosen, sizeof(T));
    return result;
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
// The remainder with the sign of b, from that with the sign of the dividend.
template <typename T> FXLOOM_INLINE T remainder_of(T rest, T b) { return rest != 0 & (rest < 0) != (b < 0) ? rest + b : rest; }

// Shifts by a count outside [0, bits) shift everything out.
template <typename T> FXLOOM_INLINE T shift_left(T a, T b) {
    const bool inside = b >= T(0) && b < T(sizeof(T) * 8);
    return inside ? (T)((u64)a << (inside ? b : T(0))) : T(0);
}
template <typename T> FXLOOM_INLINE T shift_right(T a, T b) {
    const bool inside = b >= T(0) && b < T(sizeof(T) * 8);
    return (T)(a >> (inside ? b : T(sizeof(T) * 8 - 1))) * T(inside || a < T(0));
}

// y 2^n, in two steps, so that results near 0 round once
FXLOOM_INLINE float times_power_of_2(float y, int n) {
    const int half = n >> 1;
    return y * bits_to_f32((half + 127) << 23) * bits_to_f32((n - half + 127) << 23);
}

// x - n ln 2 for x = n ln 2 + r with |r| <= ln 2 / 2
struct ExpParts { float n, r; };
FXLOOM_INLINE ExpParts exp_parts(float x) {
    const float n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
    return {n, madd(n, 2.12194440e-4f, madd(n, -0.693359375f, x))};
}

// 1.0 ulp. e^x = 2^n e^r. Integer operations hold |x| to 104, where results are 0 or infinite: of comparisons of x GCC would make
// three copies of all that follows, two of them for constants.
FXLOOM_INLINE float exp_f32(float x) {
    const int bits = f32_to_bits(x), size = bits & 0x7fffffff, limit = 0x42d00000;
    const float held = bits_to_f32((size < limit ? size : limit) | (bits & (int)0x80000000));
    const float shifted = held * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: the low bits are n
    const float n = shifted - 12582912.0f;
    const float r = madd(n, 2.12194440e-4f, madd(n, -0.693359375f, held));
    float p = 0.00138131424f;
    p = madd(p, r, 0.00836941904f);
    p = madd(p, r, 0.0416684568f);
    p = madd(p, r, 0.166665148f);
    p = madd(p, r, 0.499999931f);
    p = madd(p, r * r, r) + 1.0f;
    // times 2^n in two steps, so that results near 0 round once; the shifts leave the low bits of n alone
    const unsigned both = (unsigned)f32_to_bits(shifted), half = both >> 1;
    const float y = bits_to_f32((int)((unsigned)f32_to_bits(p) + (half << 23))) * bits_to_f32((int)((both - half + 127u) << 23));
    return x != x ? x : y;
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

// x = 2^k (1 + f) with 1 + f in [sqrt(1/2), sqrt 2)
struct LogParts { float k, f; };
FXLOOM_INLINE LogParts log_parts(float x) {
    const bool tiny = x < 1.17549435e-38f;
    const int bits = f32_to_bits(tiny ? x * 8388608.0f : x);
    const int k = (bits - 0x3f3504f3) >> 23;
    return {(float)(k - (tiny ? 23 : 0)), bits_to_f32(bits - (int)((unsigned)k << 23)) - 1.0f};
}

// a logarithm of x: y where x is positive and finite
FXLOOM_INLINE float log_of_any(float x, float y) {
    y = x == 0.0f ? -__builtin_inff() : y;
    y = x < 0.0f ? __builtin_nanf("") : y;
    return x != x || x == __builtin_inff() ? x : y;
}

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

// 1 ulp. log(x) = k ln 2 + log(1 + f)
FXLOOM_INLINE float log_f32(float x) {
    const LogParts parts = log_parts(x);
    const float f = parts.f, scale = parts.k;
    float y = log_cubic(f);
    y = madd(scale, -2.12194440e-4f, y);
    y = madd(-0.5f, f * f, y);
    y = madd(scale, 0.693359375f, f + y);
    return log_of_any(x, y);
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
    return times_power_of_2(madd(p, r, 1.0f), (int)n);
}

// 2 ulp. e^x - 1 = 2^n (e^r - 1) + (2^n - 1), all halved, so that 2^n is a float
FXLOOM_INLINE float expm1_f32(float x) {
    float a = x < -18.0f ? -18.0f : x;
    a = a > 89.0f ? 89.0f : a;
    const ExpParts parts = exp_parts(a);
    const float r = parts.r;
    float q = 1.984956601e-4f;
    q = madd(q, r, 1.39338396e-3f);
    q = madd(q, r, 8.333373589e-3f);
    q = madd(q, r, 4.16664634e-2f);
    q = madd(q, r, 0.1666666649f);
    q = madd(q, r, 0.5f);
    const float p = madd(q, r * r, r);
    const float t = bits_to_f32(((int)parts.n + 126) << 23);
    return __builtin_fabsf(x) < 1e-8f ? x : 2.0f * madd(t, p, t - 0.5f);
}

// 2 ulp. log(1 + x) = log(u) + (x - (u - 1)) / u with u = 1 + x rounded
FXLOOM_INLINE float log1p_f32(float x) {
    const float u = 1.0f + x;
    const float lost = (x < 1.0f ? x - (u - 1.0f) : 1.0f - (u - x)) / u;
    const LogParts parts = log_parts(u);
    const float f = parts.f, scale = parts.k;
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
    const LogParts parts = log_parts(x);
    const float f = parts.f;
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
    y = madd(f, 1.44269502f, y) + parts.k;
    return log_of_any(x, y);
}

// 2 ulp
FXLOOM_INLINE float log10_f32(float x) {
    const LogParts parts = log_parts(x);
    const float f = parts.f, scale = parts.k;
    float y = madd(-0.5f, f * f, log_cubic(f)) * 0.434294482f;
    y = madd(scale, 4.60503907e-6f, y);
    y = madd(f, 0.434294482f, y);
    y = madd(scale, 0.301025391f, y);
    return log_of_any(x, y);
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

// 3 ulp. log(t + sqrt(t^2 + 1)) as log1p near 0, log(2 t) far away
FXLOOM_INLINE float asinh_f32(float x) {
    const float t = __builtin_fabsf(x);
    const float far = log_f32(t) + 0.693147182f;
    const float near = log1p_f32(t + t * t / (1.0f + __builtin_sqrtf(madd(t, t, 1.0f))));
    return __builtin_copysignf(t > 1e9f ? far : near, x);
}

// 3 ulp. log(x + sqrt(x^2 - 1)), the same way
FXLOOM_INLINE float acosh_f32(float x) {
    const float t = x - 1.0f;
    const float far = log_f32(x) + 0.693147182f;
    const float squared = madd(t, t, t + t);  // positive again below -1
    return x > 1e9f ? far : log1p_f32(t + __builtin_sqrtf(t < 0.0f ? t : squared));
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

// Transposition. The shuffles of vectors of 16 bytes are single instructions everywhere, and faster than memory.
#define FXLOOM_ZIP(bytes, lane, low_lanes, high_lanes) \
    template <> struct Zip<bytes> { \
        typedef lane vector __attribute__((vector_size(16))); \
        static vector low(vector a, vector b) { return __builtin_shufflevector(a, b, low_lanes); } \
        static vector high(vector a, vector b) { return __builtin_shufflevector(a, b, high_lanes); } \
    };
#define FXLOOM_LANES(...) __VA_ARGS__
template <int Bytes> struct Zip;  // the lanes of two vectors in turn: a0 b0 a1 b1 ...
FXLOOM_ZIP(1, signed char, FXLOOM_LANES(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
           FXLOOM_LANES(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31))
FXLOOM_ZIP(2, short, FXLOOM_LANES(0, 8, 1, 9, 2, 10, 3, 11), FXLOOM_LANES(4, 12, 5, 13, 6, 14, 7, 15))
FXLOOM_ZIP(4, int, FXLOOM_LANES(0, 4, 1, 5), FXLOOM_LANES(2, 6, 3, 7))
FXLOOM_ZIP(8, i64, FXLOOM_LANES(0, 2), FXLOOM_LANES(1, 3))

// A square of as many rows as a vector has lanes. When row i has met row i + half in each of log2 steps, rows are columns.
template <typename T> FXLOOM_INLINE void transpose_square(const T* from, i64 from_step, T* to, i64 to_step) {
    typedef Zip<sizeof(T)> zip;
    constexpr int lanes = 16 / sizeof(T), half = lanes / 2;
    typename zip::vector rows[lanes], met[lanes];
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) __builtin_memcpy(&rows[i], from + i * from_step, 16);
#pragma GCC unroll 4
    for (int done = 1; done < lanes; done *= 2) {
#pragma GCC unroll 8
        for (int i = 0; i < half; ++i) {
            met[2 * i] = zip::low(rows[i], rows[i + half]);
            met[2 * i + 1] = zip::high(rows[i], rows[i + half]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < lanes; ++i) rows[i] = met[i];
    }
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) __builtin_memcpy(to + i * to_step, &rows[i], 16);
}

// to[j * to_step + i] = from[i * from_step + j]
template <typename T> static void transpose(const T* from, i64 from_step, T* to, i64 to_step, i64 rows, i64 columns) {
    constexpr int lanes = 16 / sizeof(T);
    i64 i = 0;
    for (; i + lanes <= rows; i += lanes) {
        i64 j = 0;
        for (; j + lanes <= columns; j += lanes) transpose_square(from + i * from_step + j, from_step, to + j * to_step + i, to_step);
        for (; j < columns; ++j)
            for (int k = 0; k < lanes; ++k) to[j * to_step + i + k] = from[(i + k) * from_step + j];
    }
    for (; i < rows; ++i)
        for (i64 j = 0; j < columns; ++j) to[j * to_step + i] = from[i * from_step + j];
}
