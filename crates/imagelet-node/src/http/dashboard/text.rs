//! Texts of the dashboard: names and links of images, and ages.

use imagelet_core::image::ImageId;
use jiff::Timestamp;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::{api::ImageRow, durations::age};

pub(super) fn shown(row: &ImageRow) -> String {
    ImageId::shown(row.shown_names().first(), &row.id).into_owned()
}

pub(super) fn image_href(image: &str) -> String {
    format!("/image?ref={}", utf8_percent_encode(image, NON_ALPHANUMERIC))
}

pub(super) fn ago(at: &str, now: Timestamp) -> String {
    format!("{} ago", age(Some(at), now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_an_image_carries_any_name() {
        assert_eq!(image_href("r.example/a?b=c&d:v1"), "/image?ref=r%2Eexample%2Fa%3Fb%3Dc%26d%3Av1");
        let row = ImageRow { id: "sha256:0123456789abcdef".into(), ..ImageRow::default() };
        assert_eq!(shown(&row), "0123456789abc");
    }
}
