//! Converts the error of an invalid command line into a failure for programs.

use std::ffi::OsString;

use clap::{ValueEnum as _, error::ErrorKind};

use super::command;
use crate::output::Format;
use imagelet_node::failure::Failure;

/// Finds the output format in a command line that clap cannot parse.
pub(crate) fn format_of(arguments: &[OsString]) -> Format {
    let words = arguments.iter().map(|word| word.to_string_lossy()).take_while(|word| word != "--");
    let words: Vec<_> = words.collect();
    let format = |at: usize| {
        let value = words[at].strip_prefix("--output").or_else(|| words[at].strip_prefix("-o"))?;
        let value = if value.is_empty() { words.get(at + 1)?.as_ref() } else { value.trim_start_matches('=') };
        Format::from_str(value, false).ok()
    };
    (1..words.len()).rev().find_map(format).unwrap_or_default()
}

/// Whether the command in an unparsable command line is `events`, which prints one document per line.
pub(crate) fn has_lines(arguments: &[OsString]) -> bool {
    let commands = command();
    let mut words = arguments.iter().skip(1).map(|word| word.to_string_lossy());
    words.find_map(|word| commands.find_subcommand(&*word)).is_some_and(|found| found.get_name() == "events")
}

/// Converts an error of clap to a failure: clap's message without the usage text, and clap's tip as the hint.
pub(crate) fn usage_failure(error: &clap::Error) -> Failure {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Failure::invalid("a command is missing").or_hint("`imagelet help` lists the commands");
    }
    let text = error.render().to_string();
    let mut parts = text.trim_start_matches("error: ").split("\n\n");
    let message = parts.next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
    let failure = Failure::invalid(message);
    let tip = parts.find_map(|part| part.trim_start().strip_prefix("tip: ").map(str::to_owned));
    match tip {
        Some(tip) => failure.or_hint(tip.lines().next().unwrap_or_default()),
        None => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;

    #[test]
    fn the_format_is_found_in_a_line_that_does_not_read() {
        for (line, expected) in [
            ("i frob -o json", Format::Json),
            ("i -o=yaml frob", Format::Yaml),
            ("i -ojson frob", Format::Json),
            ("i frob --output json", Format::Json),
            ("i frob --output=json -o table", Format::Table),
            ("i frob -- -o json", Format::Table),
            ("i -o xml ls", Format::Table),
            ("i ls -o", Format::Table),
        ] {
            assert_eq!(format_of(&line.split(' ').map(OsString::from).collect::<Vec<_>>()), expected, "{line}");
        }
    }

    #[test]
    fn the_command_is_found_in_a_line_that_does_not_read() {
        for (line, expected) in [
            ("i events --since yesterday -o json", true),
            ("i -o json events --frob", true),
            ("i pull events --frob", false),
            ("i frob -o json", false),
            ("i", false),
        ] {
            assert_eq!(has_lines(&line.split(' ').map(OsString::from).collect::<Vec<_>>()), expected, "{line}");
        }
    }

    #[test]
    fn a_usage_error_is_one_sentence_and_its_tip_a_hint() {
        for (line, message, hint) in [
            ("i pul", "unrecognized subcommand 'pul'", Some("a similar subcommand exists: 'pull'")),
            ("i", "a command is missing", Some("`imagelet help` lists the commands")),
            ("i pull", "the following required arguments were not provided: <REF>...", None),
            ("i gc --high 101", "invalid value '101' for '--high <PERCENT>': `101` is not between 0 and 100", None),
            ("i help frob", "no command or page is named 'frob'; `imagelet help` lists them", None),
        ] {
            let failure = usage_failure(&Cli::read(line.split(' ')).expect_err(line));
            assert_eq!((failure.message.as_str(), failure.hint.as_deref()), (message, hint), "{line}");
        }
    }
}
