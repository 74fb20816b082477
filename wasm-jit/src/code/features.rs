//! The WebAssembly features that modules may use.

use wasmparser::WasmFeatures;

/// The supported features: WebAssembly 3.0, and some of the proposals beyond it.
pub(crate) const FEATURES: WasmFeatures = WasmFeatures::MUTABLE_GLOBAL
    .union(WasmFeatures::SATURATING_FLOAT_TO_INT)
    .union(WasmFeatures::SIGN_EXTENSION)
    .union(WasmFeatures::REFERENCE_TYPES)
    .union(WasmFeatures::MULTI_VALUE)
    .union(WasmFeatures::BULK_MEMORY)
    .union(WasmFeatures::FLOATS)
    .union(WasmFeatures::GC_TYPES)
    .union(WasmFeatures::GC)
    .union(WasmFeatures::FUNCTION_REFERENCES)
    .union(WasmFeatures::TAIL_CALL)
    .union(WasmFeatures::EXTENDED_CONST)
    .union(WasmFeatures::MULTI_MEMORY)
    .union(WasmFeatures::EXCEPTIONS)
    .union(WasmFeatures::LEGACY_EXCEPTIONS)
    .union(WasmFeatures::THREADS)
    .union(WasmFeatures::SIMD)
    .union(WasmFeatures::RELAXED_SIMD)
    .union(WasmFeatures::WIDE_ARITHMETIC)
    .union(WasmFeatures::MEMORY64)
    .union(WasmFeatures::CUSTOM_PAGE_SIZES);
