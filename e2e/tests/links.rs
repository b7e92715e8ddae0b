//! Links between the pages, and the pages that code and chart name.

#![allow(clippy::unwrap_used)] // a test fails by panicking, in its helpers too

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Pages and directories whose Markdown files are read for links.
const PAGES: &[&str] =
    &["CHANGELOG.md", "CONTRIBUTING.md", "HACKING.md", "README.md", "SECURITY.md", "charts", "docs"];

/// Pages and directories that name pages in their text.
const NAMING: &[&str] = &[
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "HACKING.md",
    "README.md",
    "SECURITY.md",
    "charts",
    "crds",
    "csi",
    "e2e/bench",
    "e2e/lab",
    "e2e/scenarios",
    "e2e/src",
    "e2e/tests",
    "node",
    "operator",
    "proto",
];

/// File types whose text may name a page.
const TEXT: &[&str] = &["json", "md", "proto", "rs", "toml", "tpl", "txt", "yaml"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All files of these types in `path`, which may be one of them.
fn files(path: &Path, types: &[&str], found: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name() != "target" {
                files(&entry.path(), types, found);
            }
        }
    } else if path.extension().is_some_and(|extension| types.iter().any(|read| extension == *read)) {
        found.push(path.to_owned());
    }
}

/// All files of these types in the pages and directories of the list.
fn listed(paths: &[&str], types: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in paths {
        let path = root().join(path);
        assert!(path.exists(), "{} does not exist", path.display());
        files(&path, types, &mut found);
    }
    found
}

/// Lines of a page outside code blocks, with their numbers.
fn prose(page: &str) -> Vec<(usize, &str)> {
    let mut is_fenced = false;
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(page.lines()) {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        } else if !is_fenced {
            lines.push((number, line));
        }
    }
    lines
}

/// The text of a heading of any level.
fn heading(line: &str) -> Option<&str> {
    let text = line.trim_start_matches('#');
    let level = line.len() - text.len();
    if (1..=6).contains(&level) { text.strip_prefix(' ') } else { None }
}

/// The anchor of a heading that is the first of its text on a page.
fn slug(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The anchors of a page, as GitHub makes them: a text that occurs again has a number.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut seen = BTreeMap::new();
    let mut anchors = BTreeSet::new();
    for text in prose(page).into_iter().filter_map(|(_, line)| heading(line)) {
        let slug = slug(text);
        let before = seen.entry(slug.clone()).or_insert(0);
        anchors.insert(if *before == 0 { slug } else { format!("{slug}-{before}") });
        *before += 1;
    }
    anchors
}

/// Targets of the links of a page that lead into the repository, with their lines.
fn links(page: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut is_code = false;
    for (number, line) in prose(page) {
        // A code span may be broken over lines, and ends with its paragraph.
        is_code &= !line.is_empty();
        for (index, part) in line.split('`').enumerate() {
            is_code ^= index > 0;
            if !is_code {
                let targets = part.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
                let inside = targets.map(|(target, _)| target).filter(|target| !target.contains("://"));
                found.extend(inside.map(|target| (number, target)));
            }
        }
    }
    found
}

/// Pages of `docs` that a text names with their path, with or without an anchor.
fn named(text: &str) -> Vec<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || ['-', '_', '/', '.', '#'].contains(&c);
    let words = text.split(|c: char| !is_part(c)).map(|word| word.trim_end_matches('.'));
    words
        .filter(|word| {
            let page = word.split_once('#').map_or(*word, |(page, _)| page);
            page.starts_with("docs/") && page.ends_with(".md")
        })
        .collect()
}

/// The fault of a target, seen from a page or directory; `None` if file and heading exist.
fn fault(from: &Path, target: &str) -> Option<String> {
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if file.is_empty() { from.to_owned() } else { from.parent().unwrap().join(file) };
    if !path.exists() {
        return Some(format!("{target}: the file does not exist"));
    }
    if !anchor.is_empty() && !anchors(&fs::read_to_string(&path).unwrap()).contains(anchor) {
        return Some(format!("{target}: the page has no such heading"));
    }
    None
}

#[test]
fn links_lead_to_files_and_headings() {
    let (mut count, mut faults) = (0, Vec::new());
    for page in listed(PAGES, &["md"]) {
        for (line, target) in links(&fs::read_to_string(&page).unwrap()) {
            count += 1;
            faults.extend(fault(&page, target).map(|fault| format!("{}:{line}: {fault}", page.display())));
        }
    }
    assert!(count > 300, "the links of the pages were not found: {count}");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Messages, comments and the chart send their reader to these.
#[test]
fn named_pages_exist() {
    let readme = root().join("README.md");
    let (mut count, mut faults) = (0, Vec::new());
    for file in listed(NAMING, TEXT) {
        // The tests here have examples of pages that do not exist.
        if file.ends_with("e2e/tests/links.rs") {
            continue;
        }
        for target in named(&fs::read_to_string(&file).unwrap()) {
            count += 1;
            faults.extend(fault(&readme, target).map(|fault| format!("{}: {fault}", file.display())));
        }
    }
    assert!(count > 100, "the names of pages were not found: {count}");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn anchors_are_those_of_github() {
    let page = "# A `page`: its parts, twice\n\n## Next\n```sh\n# no heading\n```\n## Next\n#tag\n";
    let expected = ["a-page-its-parts-twice", "next", "next-1"];
    assert_eq!(anchors(page), BTreeSet::from(expected.map(str::to_owned)));
}

#[test]
fn links_are_found_outside_code() {
    let page = "[a](b.md#c) and [`d`](e.md)\n`[no](f.md)` `broken\n[no](g.md)` [h](#i)\n\n\
                ```\n[no](j.md)\n```\n[k](https://l.example/m.md)\n";
    assert_eq!(links(page), [(1, "b.md#c"), (1, "e.md"), (3, "#i")]);
}

#[test]
fn missing_targets_are_faults() {
    let readme = root().join("README.md");
    assert_eq!(fault(&readme, "docs/failures.md#alerts-for-volumes"), None);
    assert!(fault(&readme, "docs/absent.md").unwrap().contains("file does not exist"));
    assert!(fault(&readme, "docs/failures.md#absent").unwrap().contains("no such heading"));
    assert_eq!(
        named("see (docs/absent.md), https://x/docs/y.md or docs/a/b.md#c."),
        ["docs/absent.md", "docs/a/b.md#c"]
    );
}
