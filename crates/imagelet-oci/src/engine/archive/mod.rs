//! Images to archives and from archives.

mod export;
mod import;
