//! The images of a node, as commands list, inspect, check, mount and remove them.

mod adopt_images;
mod archives;
mod commands;
mod decisions;
mod image_row;
mod import_folder;
mod pins;
mod usage;
mod verify;
mod why;

pub(crate) use decisions::DECISIONS_MAX;
pub use decisions::{DecisionRow, DecisionsRequest};
pub use image_row::USES_UNKNOWN;
pub(crate) use image_row::{KnownSizes, row, row_without_uses};
pub use import_folder::FolderWatch;
pub(crate) use import_folder::import_arrivals;
pub(crate) use usage::disk_of_images;
pub(crate) use why::predict_all;
pub use why::{Why, WhyHappening, WhyHost, WhyImage, WhyNext, WhyRequest};
