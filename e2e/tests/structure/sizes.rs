//! Sizes: of files, functions and structs, without tests.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::figure;
use crate::source::{block_end, crates, is_test_attribute, item_end, numbered_words};

const FILE_LINES: usize = 700;
/// From `fn` to the closing brace.
const FUNCTION_LINES: usize = 70;
const FIELDS: usize = 15;

/// Tables, which a split would hide.
const LARGER: &[(&str, &str)] = &[
    // Every safeguard has its invariant.
    ("node/format/src/safeguard.rs", "upholds"),
    // Every figure of a volume is independent of the others.
    ("node/engine/src/volume/status.rs", "Status"),
    // The Kubernetes API.
    ("crds/src/volume.rs", "VolumeStatus"),
];

/// Sizes of one file.
#[derive(Debug, Default, PartialEq, Eq)]
struct FileSizes {
    lines: usize,
    /// Lines of each function.
    functions: Vec<(String, usize)>,
    /// Fields of each struct.
    structs: Vec<(String, usize)>,
}

impl FileSizes {
    fn of(text: &str) -> Self {
        let (numbers, words): (Vec<usize>, Vec<String>) = numbered_words(text).into_iter().unzip();
        let mut sizes = Self { lines: text.lines().count(), ..Self::default() };
        let mut at = 0;
        while at < words.len() {
            let rest = &words[at..];
            let lines_to = |end: usize| numbers[at + end - 1] - numbers[at] + 1;
            if is_test_attribute(rest) {
                let end = item_end(rest);
                sizes.lines -= lines_to(end);
                at += end;
                continue;
            }
            let name = rest.get(1).cloned().unwrap_or_default();
            match words[at].as_str() {
                // The type of a function pointer has no name.
                "fn" if name != "(" => sizes.functions.push((name, lines_to(item_end(rest)))),
                "struct" => sizes.structs.push((name, fields(rest))),
                _ => {}
            }
            at += 1;
        }
        sizes
    }
}

/// Returns the number of named fields of a struct, whose definition these words begin with.
fn fields(words: &[String]) -> usize {
    let Some(begin) = words.iter().position(|word| matches!(word.as_str(), "{" | ";" | "(")) else {
        return 0;
    };
    if words[begin] != "{" {
        return 0;
    }
    let mut depth = 0;
    let mut found = 0;
    for word in &words[begin + 1..begin + block_end(&words[begin..]) - 1] {
        match word.as_str() {
            "(" | "[" => depth += 1,
            ")" | "]" => depth -= 1,
            ":" if depth == 0 => found += 1,
            _ => {}
        }
    }
    found
}

#[test]
fn nothing_is_larger_than_a_reader_can_take_in() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let modules = crates().into_iter().flat_map(|read| read.modules);
    let files: BTreeMap<String, FileSizes> = modules
        .map(|module| {
            let sizes = FileSizes::of(&fs::read_to_string(root.join(&module.file)).unwrap());
            (module.file, sizes)
        })
        .collect();
    let mut wrong = Vec::new();
    let mut larger: Vec<(&str, &str)> = LARGER.to_vec();
    let mut check = |file: &str, name: &str, size: usize, most: usize, unit: &str| {
        if size > most {
            match larger.iter().position(|known| *known == (file, name)) {
                Some(at) => drop(larger.swap_remove(at)),
                None => wrong.push(format!("{file}: {name} has {size} {unit}, at most {most} are right")),
            }
        }
    };
    for (file, sizes) in &files {
        check(file, "the file", sizes.lines, FILE_LINES, "lines");
        for (name, lines) in &sizes.functions {
            check(file, name, *lines, FUNCTION_LINES, "lines");
        }
        for (name, fields) in &sizes.structs {
            check(file, name, *fields, FIELDS, "fields");
        }
    }
    let most = |of: fn(&FileSizes) -> usize| files.values().map(of).max().unwrap();
    figure("largest_file", most(|sizes| sizes.lines));
    figure("longest_function", most(|sizes| largest(&sizes.functions)));
    figure("largest_struct", most(|sizes| largest(&sizes.structs)));
    figure("hand_written_lines", files.values().map(|sizes| sizes.lines).sum());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(larger.is_empty(), "no longer too large, or gone: {larger:?}");
}

fn largest(named: &[(String, usize)]) -> usize {
    named.iter().map(|(_, size)| *size).max().unwrap_or_default()
}

#[test]
fn sizes_leave_out_tests() {
    let text = "struct A {\n    b: [u8; 3],\n    c: fn(d: E) -> F,\n}\n\nfn g(h: fn(I)) {\n    j();\n}\n\n\
                #[cfg(test)]\nmod tests {\n    fn k() {}\n}\n";
    let sizes = FileSizes::of(text);
    let expected =
        FileSizes { lines: 9, functions: vec![("g".to_owned(), 3)], structs: vec![("A".to_owned(), 2)] };
    assert_eq!(sizes, expected);
}
