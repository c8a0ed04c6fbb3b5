//! Which index entry runs on which machine, best first, as containerd's `platforms.Only` orders them.

use std::ops::RangeInclusive;

use imagelet_core::image::Platform;

use super::{Descriptor, DescriptorPlatform, printable};

const OFFERED_MAX: usize = 20;
const NAME_SHOWN_MAX: usize = 40;

/// The rank of an offered platform: 0 is exact, `None` cannot run.
pub(super) fn rank(offered: &DescriptorPlatform, wanted: &Platform) -> Option<usize> {
    let os = normalised_os(&offered.os);
    if os != normalised_os(&wanted.os) {
        return None;
    }
    let offer = normalised(&offered.architecture, &offered.variant);
    acceptable(wanted).iter().position(|accepted| *accepted == offer)
}

pub(super) fn offered(entries: &[Descriptor]) -> String {
    let mut names: Vec<String> = Vec::new();
    for platform in entries.iter().filter_map(|entry| entry.platform.as_ref()) {
        let mut name = format!("{}/{}", printable(&platform.os), printable(&platform.architecture));
        if !platform.variant.is_empty() {
            name = format!("{name}/{}", printable(&platform.variant));
        }
        name = name.chars().take(NAME_SHOWN_MAX).collect();
        if !names.contains(&name) {
            names.push(name);
        }
        if names.len() > OFFERED_MAX {
            names.pop();
            names.push("…".to_owned());
            break;
        }
    }
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}

/// Architecture and variant pairs that a machine runs, best first.
fn acceptable(wanted: &Platform) -> Vec<(String, String)> {
    let (architecture, variant) = normalised(&wanted.architecture, wanted.variant.as_deref().unwrap_or_default());
    let of_levels = |name: &str, levels: RangeInclusive<u8>| {
        levels.rev().map(|level| (name.to_owned(), format!("v{level}"))).collect::<Vec<_>>()
    };
    let plain = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), String::new())).collect::<Vec<_>>();
    let generation = variant.strip_prefix('v').and_then(|digits| digits.parse::<u8>().ok());
    match (architecture.as_str(), generation) {
        ("amd64", Some(level @ 2..=4)) => [of_levels("amd64", 2..=level), plain(&["amd64", "386"])].concat(),
        ("amd64", None) if variant.is_empty() => plain(&["amd64", "386"]),
        ("arm64", None) if variant.is_empty() => [plain(&["arm64"]), of_levels("arm", 5..=8)].concat(),
        ("arm", Some(level @ 5..=8)) => of_levels("arm", 5..=level),
        (name, _) if variant.is_empty() => plain(&[name]),
        (name, _) => [vec![(name.to_owned(), variant)], plain(&[name])].concat(),
    }
}

fn normalised_os(os: &str) -> String {
    match os.to_ascii_lowercase().as_str() {
        "macos" => "darwin".to_owned(),
        other => other.to_owned(),
    }
}

/// The canonical name of a machine, without its default variant.
fn normalised(architecture: &str, variant: &str) -> (String, String) {
    let variant = variant.to_ascii_lowercase();
    let architecture = architecture.to_ascii_lowercase();
    let (architecture, variant) = match (architecture.as_str(), variant.as_str()) {
        ("amd64" | "x86_64" | "x86-64", "v1") => ("amd64", ""),
        ("amd64" | "x86_64" | "x86-64", variant) => ("amd64", variant),
        ("386" | "i386" | "i686", _) => ("386", ""),
        ("arm64" | "aarch64", "8" | "v8" | "v8.0") => ("arm64", ""),
        ("arm64" | "aarch64", variant) => ("arm64", variant),
        ("armhf", _) | ("arm", "" | "7") => ("arm", "v7"),
        ("armel", _) | ("arm", "6") => ("arm", "v6"),
        ("arm", "5") => ("arm", "v5"),
        ("arm", "8") => ("arm", "v8"),
        both => both,
    };
    (architecture.to_owned(), variant.to_owned())
}
