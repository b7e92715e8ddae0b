//! The word list of CONTRIBUTING.md, compared with the code and the documents.

#![allow(clippy::unwrap_used)] // a test fails by panicking, in its helpers too

use std::fs;
use std::path::{Path, PathBuf};

/// Pages and directories that are read.
const READ_FROM: &[&str] = &[
    "CHANGELOG.md",
    "HACKING.md",
    "README.md",
    "SECURITY.md",
    "charts",
    "crds",
    "csi",
    "docs",
    "e2e/bench",
    "e2e/lab/src",
    "e2e/scenarios",
    "e2e/src",
    "e2e/start/src",
    "node",
    "operator",
    "proto",
];

/// The CSI specification's own words.
const NOT_OURS: &[&str] = &["csi.proto"];

/// File types that are read.
const READ: &[&str] = &["md", "proto", "rs", "toml", "yaml"];

/// Returns the phrases of the word list, each as its words.
fn listed() -> Vec<Vec<String>> {
    let page = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let rows = page.lines().skip_while(|line| *line != "| not | but |").skip(2);
    let phrases = rows.take_while(|line| line.starts_with('|')).map(|line| line.split('|').nth(1).unwrap());
    phrases.flat_map(|cell| cell.split(',').map(words)).collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns lower-case words of a text, including those within an identifier in snake or camel case.
fn words(text: &str) -> Vec<String> {
    numbered(text).into_iter().map(|(_line, word)| word).collect()
}

/// Returns the [`words`] of a text, each with the number of its line.
fn numbered(text: &str) -> Vec<(usize, String)> {
    let mut words = vec![(1, String::new())];
    let mut after_lower = false;
    let mut line = 1;
    for char in text.chars() {
        if !char.is_ascii_alphanumeric() || (char.is_ascii_uppercase() && after_lower) {
            line += usize::from(char == '\n');
            words.push((line, String::new()));
        }
        if char.is_ascii_alphanumeric() {
            words.last_mut().unwrap().1.push(char.to_ascii_lowercase());
        }
        after_lower = char.is_ascii_lowercase();
    }
    words.retain(|(_, word)| !word.is_empty());
    words
}

/// Collects all files of the types read in `path`, which may be one of them.
fn files(path: &Path, found: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            files(&entry.unwrap().path(), found);
        }
    } else if path.extension().is_some_and(|extension| READ.iter().any(|read| extension == *read))
        && !NOT_OURS.iter().any(|name| path.ends_with(name))
    {
        found.push(path.to_owned());
    }
}

#[test]
fn no_listed_word_is_used() {
    let listed = listed();
    assert!(listed.len() > 40, "the table of CONTRIBUTING.md was not found: {listed:?}");
    let mut found = Vec::new();
    for path in READ_FROM {
        let mut read = Vec::new();
        files(&root().join(path), &mut read);
        assert!(!read.is_empty(), "nothing to read in {path}");
        for file in read {
            let text = fs::read_to_string(&file).unwrap();
            // The whole file at once, because a phrase may span two lines.
            let words = numbered(&text);
            for phrase in &listed {
                let is_used = |at: &[(usize, String)]| at.iter().map(|(_, word)| word).eq(phrase);
                let used = words.windows(phrase.len()).filter(|at| is_used(at));
                found.extend(used.map(|at| format!("{}:{}: {}", file.display(), at[0].0, phrase.join(" "))));
            }
        }
    }
    // For `cargo e2e bench house`.
    println!("figure words {}", found.len());
    assert!(found.is_empty(), "CONTRIBUTING.md, Language, has better words:\n{}", found.join("\n"));
}

/// Maximum columns of comments and documents.
const COLUMNS: usize = 110;
/// A field's comment there becomes a description in the CRD, which would keep a line break.
const ONE_LINE_COMMENTS: &str = "crds/src";

#[test]
fn comments_and_documents_are_narrow() {
    let mut wide = Vec::new();
    for path in READ_FROM.iter().chain(&["CONTRIBUTING.md"]).filter(|path| **path != "proto") {
        let mut read = Vec::new();
        files(&root().join(path), &mut read);
        for file in read.iter().filter(|file| !file.starts_with(root().join(ONE_LINE_COMMENTS))) {
            let text = fs::read_to_string(file).unwrap();
            let is_page = file.extension().is_some_and(|extension| extension == "md");
            let mut is_fenced = false;
            for (line, text) in (1..).zip(text.lines()) {
                let comment = text.trim_start().strip_prefix("//");
                let prose = if is_page {
                    Some(text)
                } else {
                    comment.map(|text| text.trim_start_matches(['/', '!']))
                };
                is_fenced ^= prose.is_some_and(|prose| prose.trim_start().starts_with("```"));
                let is_prose = !is_fenced && prose.is_some_and(|prose| !prose.trim_start().starts_with('|'));
                if is_prose && text.chars().count() > COLUMNS {
                    wide.push(format!("{}:{line}", file.display()));
                }
            }
        }
    }
    assert!(wide.is_empty(), "more than {COLUMNS} columns:\n{}", wide.join("\n"));
}

/// Regression: a merge was recorded with a conflict in a page.
#[test]
fn no_file_has_the_marks_of_a_conflict() {
    let mut read = Vec::new();
    for path in READ_FROM.iter().chain(&["CONTRIBUTING.md"]) {
        files(&root().join(path), &mut read);
    }
    let is_mark = |line: &str| line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> ");
    read.retain(|file| fs::read_to_string(file).unwrap().lines().any(is_mark));
    assert!(read.is_empty(), "marks of a conflict in {read:?}");
}

/// Words that must not begin a doc comment.
const QUESTIONS: &[&str] =
    &["what", "how", "when", "where", "whether", "which", "who", "whom", "whose", "why"];

/// Returns the lines of a source file where a doc comment begins with a question word.
fn questions(text: &str) -> Vec<usize> {
    let mut found = Vec::new();
    let mut is_inside = false;
    for (line, text) in (1..).zip(text.lines()) {
        let text = text.trim_start();
        let doc = text.strip_prefix("///").or_else(|| text.strip_prefix("//!"));
        if let (false, Some(doc)) = (is_inside, doc)
            && words(doc).first().is_some_and(|first| QUESTIONS.contains(&first.as_str()))
        {
            found.push(line);
        }
        is_inside = doc.is_some();
    }
    found
}

#[test]
fn doc_comments_begin_with_no_question_word() {
    let mut found = Vec::new();
    for path in READ_FROM {
        let mut read = Vec::new();
        files(&root().join(path), &mut read);
        for file in read.iter().filter(|file| file.extension().is_some_and(|extension| extension == "rs")) {
            let text = fs::read_to_string(file).unwrap();
            found.extend(questions(&text).iter().map(|line| format!("{}:{line}", file.display())));
        }
    }
    assert!(found.is_empty(), "CONTRIBUTING.md, Language, rule 2:\n{}", found.join("\n"));
}

#[test]
fn questions_are_found_at_the_start_of_a_comment() {
    let text =
        "/// Whether it is.\nfn a() {}\n    /// Volume.\n    /// When it was made.\n//! How.\n// What.\n";
    assert_eq!(questions(text), [1]);
    assert_eq!(questions("fn a() {}\n//! How it works.\n"), [2]);
}

#[test]
fn words_are_found_in_identifiers() {
    assert_eq!(words("fn let_go(NotTakenUp: u8)"), ["fn", "let", "go", "not", "taken", "up", "u8"]);
}

#[test]
fn words_know_their_lines() {
    let found = numbered("/// It never gives\n/// up.");
    assert_eq!(found[2..], [(1, "gives".to_owned()), (2, "up".to_owned())]);
}
