"""Why a container can't use its GPUs: from facts to causes; pure."""
