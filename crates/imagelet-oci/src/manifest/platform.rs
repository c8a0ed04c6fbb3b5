//! Ranks the platforms of an index for a machine, best first, in the order of containerd's `platforms.Only`.

use std::{fmt, ops::RangeInclusive};

use imagelet_core::{
    error::{ErrorClass, Fault, RuntimeError, Stage},
    image::Platform,
};

use super::{DescriptorPlatform, printable, unacceptable};

const OFFERED_MAX: usize = 20;
const NAME_SHOWN_MAX: usize = 40;

impl DescriptorPlatform {
    /// The rank of this platform for `wanted`; 0 is the best match. `None` if `wanted` cannot run the platform.
    pub(super) fn rank(&self, wanted: &Platform) -> Option<usize> {
        if !self.has_system_of(wanted) {
            return None;
        }
        let offer = normalised(&self.architecture, &self.variant);
        acceptable(wanted).iter().position(|accepted| *accepted == offer)
    }

    pub(super) fn is_named(&self) -> bool {
        !self.architecture.is_empty()
    }

    /// Whether the platform is of a machine. Builders write `unknown` for entries that no machine runs.
    pub(super) fn is_of_a_machine(&self) -> bool {
        self.is_named() && self.architecture != "unknown"
    }

    /// Whether the image may be for `wanted`. The platform has no architecture, so only the configuration can decide.
    pub(super) fn may_be_for(&self, wanted: &Platform) -> bool {
        !self.is_named() && self.has_system_of(wanted)
    }

    /// An absent OS is the host's OS.
    pub(crate) fn has_system_of(&self, wanted: &Platform) -> bool {
        normalised_os(&self.os) == normalised_os(&wanted.os)
    }

    /// Checks that an image with this platform runs on `wanted`. An absent architecture matches any.
    pub(crate) fn check(&self, wanted: &Platform) -> Result<(), RuntimeError> {
        if self.rank(wanted).is_some() || self.may_be_for(wanted) {
            return Ok(());
        }
        let or = |own: &str, absent: String| if own.is_empty() { absent } else { printable(own) };
        let os = or(&self.os, Platform::host().os);
        let architecture = or(&self.architecture, wanted.architecture.clone());
        let fault = Fault::new(ErrorClass::PlatformMissing, Stage::Manifest);
        Err(unacceptable(format!("the image is for `{os}/{architecture}`, not for `{wanted}`")).with_fault(fault))
    }

    pub(super) fn texts(&self) -> [&String; 3] {
        [&self.os, &self.architecture, &self.variant]
    }
}

#[derive(Default)]
pub(super) struct OfferedPlatforms(Vec<String>);

impl OfferedPlatforms {
    pub(super) fn add(&mut self, platform: &DescriptorPlatform) {
        if self.0.len() > OFFERED_MAX || (platform.os.is_empty() && !platform.is_named()) {
            return;
        }
        let os = if platform.os.is_empty() { Platform::host().os } else { printable(&platform.os) };
        let parts = [os, printable(&platform.architecture), printable(&platform.variant)];
        let name: String = parts.join("/").trim_end_matches('/').chars().take(NAME_SHOWN_MAX).collect();
        if !self.0.contains(&name) {
            self.0.push(if self.0.len() < OFFERED_MAX { name } else { "…".to_owned() });
        }
    }
}

impl fmt::Display for OfferedPlatforms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { f.write_str("nothing") } else { f.write_str(&self.0.join(", ")) }
    }
}

/// The pairs of architecture and variant that a machine runs, best first.
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
        "" => Platform::host().os,
        "macos" => "darwin".to_owned(),
        other => other.to_owned(),
    }
}

/// The canonical architecture and variant. The default variant of amd64 and arm64 becomes empty.
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
