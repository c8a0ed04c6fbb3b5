//! The drawings of the dashboard, as SVG: usage over time, shares of the disk, and the map of images.

use imagelet_core::image::ByteSize;
use maud::{Markup, html};

use super::{
    text::{image_href, shown},
    treemap::{Tile, tiles},
};
use crate::{
    api::{Disk, ImageRow},
    durations::milliseconds,
};

/// Images with a separate tile; the smaller images share one tile.
const TILES_MAX: usize = 48;
const GAP: f64 = 2.0;
const LINE: f64 = 16.0;
/// The label of a narrower tile is not readable.
const LABEL_WIDTH_MIN: f64 = 56.0;

/// Usage over time with both thresholds; empty with fewer than two samples.
pub(super) fn usage(disk: &Disk) -> Markup {
    const WIDTH: f64 = 600.0;
    const HEIGHT: f64 = 160.0;
    let (Some(first), Some(last)) = (disk.history.first(), disk.history.last()) else { return html! {} };
    if last.at <= first.at || disk.capacity == 0 {
        return html! {};
    }
    let x = |at: u64| (at - first.at) as f64 / (last.at - first.at) as f64 * WIDTH;
    let y = |share: f64| HEIGHT - share.clamp(0.0, 1.0) * HEIGHT;
    let points: Vec<String> = disk
        .history
        .iter()
        .map(|sample| format!("{:.1},{:.1}", x(sample.at), y(sample.used as f64 / disk.capacity as f64)))
        .collect();
    let line = points.join(" ");
    let (high, low) = (y(f64::from(disk.high_percent) / 100.0), y(f64::from(disk.low_percent) / 100.0));
    html! {
        figure {
            svg .usage viewBox="0 0 600 160" preserveAspectRatio="none" role="img" aria-label="Usage of the disk over time" {
                polygon .area points=(format!("0,{HEIGHT} {line} {WIDTH},{HEIGHT}")) {}
                polyline .line points=(line) {}
                line .high x1="0" x2="600" y1=(high) y2=(high) {}
                line .low x1="0" x2="600" y1=(low) y2=(low) {}
            }
            figcaption {
                "The last " (milliseconds((last.at - first.at) * 1000)) "; dashed: " (disk.high_percent) "% and " (disk.low_percent) "%"
            }
        }
    }
}

/// The shares of the disk side by side, with both thresholds.
pub(super) fn share_bar(disk: &Disk) -> Markup {
    let total: u64 = disk.capacity.max(1);
    let mut x = 0.0;
    let parts: Vec<_> = disk
        .shares()
        .into_iter()
        .map(|(class, name, size)| {
            let width = size as f64 / total as f64 * 1000.0;
            x += width;
            (class, name, size, x - width, width)
        })
        .collect();
    html! {
        svg .shares viewBox="0 0 1000 20" preserveAspectRatio="none" role="img" aria-label="Shares of the disk" {
            @for (class, _, _, x, width) in &parts {
                rect class=(class) x=(format!("{x:.1}")) y="0" width=(format!("{width:.1}")) height="20" {}
            }
            @for (class, percent) in [("low", disk.low_percent), ("high", disk.high_percent)] {
                @let x = f64::from(percent) * 10.0;
                line class=(class) x1=(x) x2=(x) y1="0" y2="20" {}
            }
        }
        ul .legend {
            @for (class, name, size, ..) in &parts {
                li { span .key.(class) {} (name) " " strong { (ByteSize(*size)) } }
            }
        }
    }
}

/// A map of images by their unshared bytes if known, else by their listed size.
pub(super) fn image_map(images: &[ImageRow], width: f64, height: f64, class: &str) -> Markup {
    let weight = |row: &ImageRow| row.unique.unwrap_or(row.size);
    let mut rows: Vec<&ImageRow> = images.iter().filter(|row| weight(row) > 0).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(weight(row)));
    let small = rows.split_off(rows.len().min(TILES_MAX));
    let mut sizes: Vec<u64> = rows.iter().map(|row| weight(row)).collect();
    let others: u64 = small.iter().map(|row| weight(row)).sum();
    sizes.extend((others > 0).then_some(others));
    let laid = tiles(&sizes, width, height);
    html! {
        svg .map.(class) viewBox=(format!("0 0 {width} {height}")) role="group" aria-label="Images by their own bytes" {
            @for (row, tile) in rows.iter().zip(&laid) {
                @let name = shown(row);
                @let size = ByteSize(weight(row));
                a href=(image_href(&row.id)) class=(state(row)) aria-label=(format!("{name}, {size}, {}", state(row))) {
                    title { (name) " " (size) }
                    // The last part of the name: `web:v1` of `registry.example/team/web:v1`.
                    (drawn(tile, name.rsplit('/').next().unwrap_or(&name), size))
                }
            }
            @if let (true, Some(tile)) = (others > 0, laid.last()) {
                g .other {
                    (drawn(tile, &format!("{} smaller", small.len()), ByteSize(others)))
                }
            }
        }
    }
}

/// The class of a row: `in-use`, `pinned` or `unused`.
pub(super) fn state(row: &ImageRow) -> &'static str {
    match (row.in_use_by.is_empty(), row.pinned_by.is_empty()) {
        (false, _) => "in-use",
        (true, false) => "pinned",
        (true, true) => "unused",
    }
}

/// A tile with its name, and the size below if it fits. A nested SVG cuts the label at the edge of the tile.
fn drawn(tile: &Tile, name: &str, size: ByteSize) -> Markup {
    let length = |length: f64| format!("{length:.1}");
    let (width, height) = ((tile.width - GAP).max(0.5), (tile.height - GAP).max(0.5));
    let lines = if width < LABEL_WIDTH_MIN { 0.0 } else { (height / LINE).floor() };
    html! {
        svg x=(length(tile.x + GAP / 2.0)) y=(length(tile.y + GAP / 2.0)) width=(length(width)) height=(length(height)) {
            rect width="100%" height="100%" rx="2" {}
            @if lines >= 1.0 { text x="4" y="14" { (name) } }
            @if lines >= 2.0 { text x="4" y="30" { (size) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::DiskSample;

    #[test]
    fn a_tile_has_the_lines_that_it_has_room_for() {
        for (width, height, texts) in [(300.0, 100.0, 2), (300.0, 30.0, 1), (300.0, 10.0, 0), (40.0, 100.0, 0)] {
            let drawn = drawn(&Tile { width, height, ..Tile::default() }, "a:v1", ByteSize(45_100)).into_string();
            assert_eq!(drawn.matches("<text").count(), texts, "{drawn}");
        }
    }

    #[test]
    fn the_chart_begins_with_the_second_sample_and_stays_in_its_frame() {
        let history = |count: u64| (0..count).map(|at| DiskSample { at: at * 60, used: at * 20 }).collect();
        let disk = |count| Disk {
            capacity: 100,
            high_percent: 85,
            low_percent: 80,
            history: history(count),
            ..Disk::default()
        };
        assert_eq!(usage(&disk(0)).into_string() + &usage(&disk(1)).into_string(), "");
        let chart = usage(&disk(7)).into_string();
        assert!(chart.contains("points=\"0.0,160.0 100.0,128.0 200.0,96.0"), "{chart}");
        assert!(chart.contains("600.0,0.0\"") && chart.contains("y1=\"24\""), "more than the capacity is cut: {chart}");
    }

    #[test]
    fn the_map_escapes_names_and_joins_small_images() {
        let row = |number: u64| ImageRow {
            id: format!("sha256:{number}"),
            names: vec![format!("r.example/<script>alert({number})</script>/a-name-of-quite-some-length:v{number}")],
            size: 1000 - number,
            unique: (number == 0).then_some(5000),
            ..ImageRow::default()
        };
        let map = image_map(&(0..60).map(row).collect::<Vec<_>>(), 800.0, 360.0, "wide").into_string();
        assert!(!map.contains("<script>") && map.contains("&lt;script&gt;"), "{map}");
        assert_eq!(map.matches("<a ").count(), TILES_MAX);
        assert!(map.contains("12 smaller") && map.contains("5kB"), "{map}");
    }
}
