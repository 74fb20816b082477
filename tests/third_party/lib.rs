//! Empty: the package exists for its list of dependencies (see Cargo.toml).
