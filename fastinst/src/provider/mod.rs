//! Providers: what knows where probes can be. A provider tells where sites are and what they look
//! like; ids, switching and callbacks are the same for all.

pub mod cyg_profile;
