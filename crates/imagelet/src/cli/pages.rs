//! The pages of the guide for `imagelet help PAGE`, built in because the host may have no other copy.

/// The pages and their names. In the crate's folder, `docs` is a link, so that a packaged crate contains the pages.
macro_rules! pages {
    ($($name:literal)*) => { &[$(($name, include_str!(concat!("../../docs/", $name, ".md")))),*] };
}

const PAGES: &[(&str, &str)] = pages! {
    "admission" "air-gap" "alone" "beside" "between" "cluster" "collection" "command-line"
    "compatibility" "configuration" "containerd" "credentials" "ensure" "errors" "events" "http"
    "install" "kubernetes" "metrics" "models" "operations" "others" "prefetch" "registries" "security"
    "start" "store" "troubleshooting" "trust" "tuning" "why"
};

pub(super) fn page(name: &str) -> Option<&'static str> {
    PAGES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

pub(super) fn titles() -> impl Iterator<Item = (&'static str, &'static str)> {
    PAGES.iter().map(|(name, text)| (*name, text.lines().next().unwrap_or_default().trim_start_matches("# ")))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use super::*;

    /// For those who change the program.
    const NOT_SHOWN: [&str; 4] = ["SUMMARY", "library", "performance", "testing"];

    #[test]
    fn each_page_for_users_of_the_program_is_in_the_program() {
        let folder = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/docs")).expect("the folder of pages");
        let files = folder.map(|entry| entry.expect("an entry").file_name().into_string().expect("a plain name"));
        let names: BTreeSet<_> = files.filter_map(|file| file.strip_suffix(".md").map(str::to_owned)).collect();
        let shown = PAGES.iter().map(|(name, _)| *name).chain(NOT_SHOWN).map(str::to_owned).collect();
        assert_eq!(names, shown);
        assert!(titles().all(|(_, title)| !title.is_empty()));
    }
}
