// Vectors of 128 bits, with the same operations natively and in WebAssembly.
//
// Arithmetic, comparisons, shifts by a number and shuffles with constant indices are those of the
// compilers: `+`, `<`, `>>`, `__builtin_shufflevector`. The functions here are for what has no such
// form; each is a WebAssembly operator, and one or a few SSE4.1 instructions.
#ifndef VECTOR_H
#define VECTOR_H

#include <stdint.h>
#include <string.h>

#ifdef __wasm_simd128__
#include <wasm_simd128.h>
typedef v128_t any;
#else
#include <smmintrin.h>
typedef __m128i any;
#endif

#define VECTOR __attribute__((vector_size(16)))
typedef uint8_t u8x16 VECTOR;
typedef int8_t i8x16 VECTOR;
typedef uint16_t u16x8 VECTOR;
typedef int16_t i16x8 VECTOR;
typedef uint32_t u32x4 VECTOR;
typedef int32_t i32x4 VECTOR;
typedef uint64_t u64x2 VECTOR;
typedef float f32x4 VECTOR;
typedef double f64x2 VECTOR;

// At any address.
static inline any load(const void *from) {
    any loaded;
    memcpy(&loaded, from, sizeof loaded);
    return loaded;
}

static inline void store_any(void *to, any what) {
    memcpy(to, &what, sizeof what);
}
#define store(to, what) store_any(to, (any)(what))

// All lanes alike.
static inline u8x16 u8_all(uint8_t x) {
    return (u8x16){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}
static inline i16x8 i16_all(int16_t x) { return (i16x8){x, x, x, x, x, x, x, x}; }
static inline u16x8 u16_all(uint16_t x) { return (u16x8){x, x, x, x, x, x, x, x}; }
static inline u32x4 u32_all(uint32_t x) { return (u32x4){x, x, x, x}; }
static inline i32x4 i32_all(int32_t x) { return (i32x4){x, x, x, x}; }
static inline f32x4 f32_all(float x) { return (f32x4){x, x, x, x}; }
static inline f64x2 f64_all(double x) { return (f64x2){x, x}; }

// Functions of one or two vectors: result, name, type of the operands, both implementations.
#ifdef __wasm_simd128__
#define UNARY(result, name, of, wasm, sse) \
    static inline result name(of a) { return (result)wasm((any)a); }
#define BINARY(result, name, of, wasm, sse) \
    static inline result name(of a, of b) { return (result)wasm((any)a, (any)b); }
#else
#define UNARY(result, name, of, wasm, sse) \
    static inline result name(of a) { return (result)sse((any)a); }
#define BINARY(result, name, of, wasm, sse) \
    static inline result name(of a, of b) { return (result)sse((any)a, (any)b); }

static inline any upper_half(any a) { return _mm_srli_si128(a, 8); }
static inline any sse_u16_high(any a) { return _mm_cvtepu8_epi16(upper_half(a)); }
static inline any sse_i16_high(any a) { return _mm_cvtepi8_epi16(upper_half(a)); }
static inline any sse_u32_high(any a) { return _mm_cvtepu16_epi32(upper_half(a)); }
static inline any sse_pairs_u8(any a) { return _mm_maddubs_epi16(a, _mm_set1_epi8(1)); }
static inline int sse_any_true(any a) { return !_mm_testz_si128(a, a); }
static inline any sse_nearest64(any a) {
    return (any)_mm_round_pd((__m128d)a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline any sse_nearest32(any a) {
    return (any)_mm_round_ps((__m128)a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline any sse_trunc(any a) { return _mm_cvttps_epi32((__m128)a); }
static inline any sse_convert(any a) { return (any)_mm_cvtepi32_ps(a); }
static inline any sse_pmin(any a, any b) { return (any)_mm_min_ps((__m128)b, (__m128)a); }
static inline any sse_pmax(any a, any b) { return (any)_mm_max_ps((__m128)b, (__m128)a); }
static inline any sse_extmul_low(any a, any b) {
    return _mm_mul_epu32(_mm_shuffle_epi32(a, 0x50), _mm_shuffle_epi32(b, 0x50));
}
static inline any sse_popcnt(any a) {
    any counts = _mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
    any low = _mm_set1_epi8(15);
    return _mm_add_epi8(_mm_shuffle_epi8(counts, _mm_and_si128(a, low)),
                        _mm_shuffle_epi8(counts, _mm_and_si128(_mm_srli_epi16(a, 4), low)));
}
#endif

BINARY(u8x16, u8_add_sat, u8x16, wasm_u8x16_add_sat, _mm_adds_epu8)
BINARY(u8x16, u8_sub_sat, u8x16, wasm_u8x16_sub_sat, _mm_subs_epu8)
BINARY(i16x8, i16_add_sat, i16x8, wasm_i16x8_add_sat, _mm_adds_epi16)
BINARY(i32x4, i32_min, i32x4, wasm_i32x4_min, _mm_min_epi32)
BINARY(i32x4, i32_max, i32x4, wasm_i32x4_max, _mm_max_epi32)
// The lesser and the greater one; of numbers, not NaNs.
BINARY(f32x4, f32_min, f32x4, wasm_f32x4_pmin, sse_pmin)
BINARY(f32x4, f32_max, f32x4, wasm_f32x4_pmax, sse_pmax)

// Narrower lanes, saturating: those of `a`, then those of `b`.
BINARY(u8x16, u8_narrow, i16x8, wasm_u8x16_narrow_i16x8, _mm_packus_epi16)
BINARY(i8x16, i8_narrow, i16x8, wasm_i8x16_narrow_i16x8, _mm_packs_epi16)
BINARY(i16x8, i16_narrow, i32x4, wasm_i16x8_narrow_i32x4, _mm_packs_epi32)

// Wider lanes: the lower and the upper half.
UNARY(u16x8, u16_low, u8x16, wasm_u16x8_extend_low_u8x16, _mm_cvtepu8_epi16)
UNARY(u16x8, u16_high, u8x16, wasm_u16x8_extend_high_u8x16, sse_u16_high)
UNARY(i16x8, i16_low, i8x16, wasm_i16x8_extend_low_i8x16, _mm_cvtepi8_epi16)
UNARY(i16x8, i16_high, i8x16, wasm_i16x8_extend_high_i8x16, sse_i16_high)
UNARY(u32x4, u32_low, u16x8, wasm_u32x4_extend_low_u16x8, _mm_cvtepu16_epi32)
UNARY(u32x4, u32_high, u16x8, wasm_u32x4_extend_high_u16x8, sse_u32_high)

// Sums of neighbours.
UNARY(u16x8, u16_pairs, u8x16, wasm_u16x8_extadd_pairwise_u8x16, sse_pairs_u8)
// Sums of the products of neighbours.
BINARY(i32x4, i16_dot, i16x8, wasm_i32x4_dot_i16x8, _mm_madd_epi16)
// Products of fractions of 15 bits, rounded; not of -1 and -1.
BINARY(i16x8, i16_mul_q15, i16x8, wasm_i16x8_q15mulr_sat, _mm_mulhrs_epi16)
// Products of lanes 0 and 1.
BINARY(u64x2, u64_extmul_low, u32x4, wasm_u64x2_extmul_low_u32x4, sse_extmul_low)
// The number of ones in each byte.
UNARY(u8x16, u8_popcnt, u8x16, wasm_i8x16_popcnt, sse_popcnt)

// The sign bits.
UNARY(uint32_t, bitmask8, u8x16, wasm_i8x16_bitmask, _mm_movemask_epi8)
UNARY(int, any_true, u8x16, wasm_v128_any_true, sse_any_true)

UNARY(f64x2, f64_nearest, f64x2, wasm_f64x2_nearest, sse_nearest64)
UNARY(f32x4, f32_nearest, f32x4, wasm_f32x4_nearest, sse_nearest32)
UNARY(f32x4, f32_convert, i32x4, wasm_f32x4_convert_i32x4, sse_convert)
// Of numbers in the range of the result.
UNARY(i32x4, i32_trunc, f32x4, wasm_i32x4_trunc_sat_f32x4, sse_trunc)

// The bytes of a table at these indices: less than 16, or at least 128 for 0.
BINARY(u8x16, swizzle, u8x16, wasm_i8x16_swizzle, _mm_shuffle_epi8)

// `a` where the mask is all ones, `b` where it is 0.
static inline any select_any(any mask, any a, any b) {
#ifdef __wasm_simd128__
    return wasm_v128_bitselect(a, b, mask);
#else
    return _mm_blendv_epi8(b, a, mask);
#endif
}
#define select(mask, a, b) select_any((any)(mask), (any)(a), (any)(b))

// Lanes of both, alternating: of the lower halves, and of the upper halves.
#define INTERLEAVE_LOW16(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define INTERLEAVE_HIGH16(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)

// The columns of four vectors.
static inline void transpose(u32x4 v[4]) {
    u32x4 a = __builtin_shufflevector(v[0], v[1], 0, 4, 1, 5);
    u32x4 b = __builtin_shufflevector(v[2], v[3], 0, 4, 1, 5);
    u32x4 c = __builtin_shufflevector(v[0], v[1], 2, 6, 3, 7);
    u32x4 d = __builtin_shufflevector(v[2], v[3], 2, 6, 3, 7);
    v[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
    v[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
    v[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
    v[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
}

#endif
