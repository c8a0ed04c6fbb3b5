//! Finds the known word that is nearest to a misspelled word.

const LIKENESS_MIN: f64 = 0.8;

pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_ascii_lowercase();
    let likeness = |known: &str| strsim::jaro_winkler(&word, &known.to_ascii_lowercase());
    let near = known.into_iter().map(|known| (likeness(known), known)).filter(|(like, _)| *like >= LIKENESS_MIN);
    near.max_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_leads_to_the_word_that_was_meant_and_another_word_to_none() {
        let known = ["imageGCHighThresholdPercent", "imageGCLowThresholdPercent", "socket", "http", "store"];
        for (word, near) in [
            ("imageGcHighTresholdPercent", Some(known[0])),
            ("imageGCLowThresholdPercents", Some(known[1])),
            ("Socket", Some("socket")),
            ("sotre", Some("store")),
            ("endpoint", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, known), near, "{word}");
        }
    }
}
