//! The images of a node, as commands list, inspect, check, mount and remove them.

mod adopt_images;
mod archives;
mod commands;
mod image_row;
mod import_folder;
mod pins;
mod service;
mod verify;
mod why;

pub use image_row::USES_UNKNOWN;
pub use import_folder::FolderWatch;
pub(crate) use import_folder::import_arrivals;
pub(crate) use service::act_now;
pub use service::{Images, NodePlace};
pub(crate) use why::predict_all;
pub use why::{DecisionRow, Decisions, DecisionsRequest, Why, WhyHappening, WhyImage, WhyNext, WhyRequest};
