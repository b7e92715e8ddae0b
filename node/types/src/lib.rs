//! Leaf words of the data plane: sectors, blocks, ids, masks.
