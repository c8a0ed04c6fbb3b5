//! Images to archives and from archives.

mod export;
mod import;

#[cfg(feature = "fuzzing")]
pub(crate) use self::import::choose;
