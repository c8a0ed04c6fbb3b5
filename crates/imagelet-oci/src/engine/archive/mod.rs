//! Exports images to archives, and imports images from archives.

mod export;
mod import;

#[cfg(feature = "fuzzing")]
pub(crate) use self::import::choose;
