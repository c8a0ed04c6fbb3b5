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

/// Limit of the images with a tile of their own. All smaller images share one tile.
const TILES_MAX: usize = 48;
/// Gap between tiles, and the space around a label.
const GAP: f64 = 2.0;
const LETTER: f64 = 7.6;
const LINE: f64 = 16.0;
const NAME_MIN: usize = 6;

/// The chart of the disk usage over time, with both thresholds. With fewer than two samples, the chart is empty.
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

/// A map of images. The area of an image is its unshared bytes if they are known, else its listed size.
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
                    (rectangle(tile))
                    (label(tile, last_part(&name), &size.to_string()))
                }
            }
            @if let (true, Some(tile)) = (others > 0, laid.last()) {
                g .other {
                    (rectangle(tile))
                    (label(tile, &format!("{} smaller", small.len()), &ByteSize(others).to_string()))
                }
            }
        }
    }
}

pub(super) fn state(row: &ImageRow) -> &'static str {
    match (row.in_use_by.is_empty(), row.pinned_by.is_empty()) {
        (false, _) => "in-use",
        (true, false) => "pinned",
        (true, true) => "unused",
    }
}

fn rectangle(tile: &Tile) -> Markup {
    let (width, height) = ((tile.width - GAP).max(0.5), (tile.height - GAP).max(0.5));
    html! {
        rect x=(format!("{:.1}", tile.x + GAP / 2.0)) y=(format!("{:.1}", tile.y + GAP / 2.0))
            width=(format!("{width:.1}")) height=(format!("{height:.1}")) rx="2" {}
    }
}

/// The label of a tile: the name, cut to the width of the tile, and below it the size if the size fits.
fn label(tile: &Tile, name: &str, size: &str) -> Markup {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "letters and lines of a tile")]
    let (letters, fit) =
        (((tile.width - 4.0 * GAP) / LETTER).max(0.0) as usize, ((tile.height - 2.0 * GAP) / LINE).max(0.0) as usize);
    let name = (letters >= NAME_MIN || letters >= name.chars().count()).then(|| cut(name, letters));
    let size = (letters >= size.chars().count()).then(|| size.to_owned());
    let shown = name.into_iter().chain(size).take(fit);
    html! {
        @for (number, line) in shown.enumerate() {
            text x=(format!("{:.1}", tile.x + 3.0 * GAP)) y=(format!("{:.1}", tile.y + LINE * (number as f64 + 1.0))) {
                (line)
            }
        }
    }
}

/// Cuts the middle out of a long text. The names of a team's images differ at the end, so most of the end stays.
fn cut(text: &str, letters: usize) -> String {
    let length = text.chars().count();
    if length <= letters {
        return text.to_owned();
    }
    let kept = letters.saturating_sub(1);
    let end = kept * 2 / 3;
    text.chars().take(kept - end).chain(['…']).chain(text.chars().skip(length - end)).collect()
}

fn last_part(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::DiskSample;

    #[test]
    fn a_size_is_shown_as_a_whole_or_not_at_all() {
        let shown = |width: f64| {
            let tile = Tile { width, height: 100.0, ..Tile::default() };
            label(&tile, "a-long-name:v1", "45.1kB").into_string()
        };
        assert!(shown(300.0).contains("a-long-name:v1") && shown(300.0).contains("45.1kB"));
        let narrow = shown(4.0 * GAP + 8.0 * LETTER);
        assert!(narrow.contains('…') && narrow.contains("45.1kB"), "{narrow}");
        assert_eq!(shown(4.0 * GAP + 5.0 * LETTER), "");
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
    fn the_map_escapes_names_cuts_labels_and_joins_small_images() {
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
        assert!(map.contains("12 smaller") && map.contains('…') && map.contains("5kB"), "{map}");
        for (text, letters, shown) in [
            ("four", 4, "four"),
            ("fives", 4, "f…es"),
            ("a-service-12:v1.12", 13, "a-se…12:v1.12"),
            ("fives", 1, "…"),
            ("fives", 0, "…"),
        ] {
            assert_eq!(cut(text, letters), shown);
        }
    }
}
